from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast
from xlt_training.encoders import distill
from xlt_training.encoders.examples import Material
from xlt_training.encoders.workers import Crew

from tests.xlt_training.encoders.test_distill import make, material, pieces, tokenizer

__all__ = ["material", "pieces", "tokenizer"]


def test_two_processes_train_one_student(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, material: Material
) -> None:
    run = make(tmp_path, tokenizer, material)
    with Crew(run, size=2) as crew:
        own, seen = 0, 0
        while seen - own < 20:  # until the other one has made twenty steps
            for batch in run.batches(0):
                crew.one_step(batch, 1.0)
                own, seen = own + 1, run.step
    assert all(process.exitcode == 0 for process in crew.processes)
    assert run.step == seen > own
    # Adam's own count of steps lies in shared memory too.
    counted = {float(state["step"]) for state in run.optimizer.state.values()}
    assert max(counted) > own
    assert all(torch.isfinite(value).all() for value in run.student.state_dict().values())


def test_one_worker_is_the_ordinary_loop(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, material: Material
) -> None:
    run = make(tmp_path, tokenizer, material)
    with Crew(run, size=1) as crew:
        assert distill.train(run, crew, limit=1.0, cool_share=0.5)
    assert not crew.processes
    assert run.step > 0
    assert run.checkpoint.exists()
    resumed = make(tmp_path, tokenizer, material)
    resumed.start()
    assert 0 < resumed.step <= run.step  # from before the cool-down


def test_a_run_that_is_halted_saves_and_says_so(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, material: Material
) -> None:
    run = make(tmp_path, tokenizer, material)
    with Crew(run, size=1) as crew:
        crew.halt()
        assert not distill.train(run, crew, limit=1000.0, cool_share=0.0)
    assert run.checkpoint.exists()
    assert (tmp_path / "snapshot" / "model.safetensors").exists()
