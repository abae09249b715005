"""The bar says rows, losses by name and the time left; it is there on a terminal alone."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from xlt_training.loop import config, trainer
from xlt_training.loop.progress import Means, rows_after


@given(st.integers(0, 60), st.integers(1, 50), st.integers(1, 20))
def test_rows_are_those_of_the_batches(steps: int, rows: int, a_step: int) -> None:
    epoch = [len(range(start, min(rows, start + a_step))) for start in range(0, rows, a_step)]
    assert rows_after(steps, rows, a_step) == sum((epoch * 61)[:steps])


@given(st.lists(st.lists(st.floats(-9, 9), min_size=1), min_size=1))
def test_means_are_of_all_that_was_seen(parts: list[list[float]]) -> None:
    means, terms = Means(), {"loss": list[torch.Tensor]()}
    for part in parts:
        terms["loss"] += [torch.tensor(value, dtype=torch.float64) for value in part]
        flat = [float(value) for value in terms["loss"]]
        assert means.of(terms) == {"loss": pytest.approx(sum(flat) / len(flat), abs=1e-9)}
    means.clear()
    assert means.of({"loss": [torch.tensor(2.0)]}) == {"loss": 2.0}


def test_a_terminal_has_a_bar_and_a_pipe_has_none(
    config_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = config.load(config_file, ["train.epochs=1", "train.max_steps=3"])
    trainer.train(made, tmp_path / "piped", judge=False)
    assert "rows/s" not in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    trainer.train(made, tmp_path / "shown", judge=False)
    err = capsys.readouterr().err
    size = made.stages[0].train.batch_size
    bars = re.findall(rf"(\d+)/{3 * size} \[\S+<(\S+), .* rows/s, (\w+) (\d\.\d+)\]", err)
    assert bars
    assert {name for _, _, name, _ in bars} == {"cross_entropy"}
    assert int(bars[-1][0]) == 3 * size  # the last one
    assert re.search(r"^epoch .*: loss \d", err.replace("\r", "\n"), re.MULTILINE)
