"""The folder that ships: fp16 weights with the masked-word head, the projection, tokenizer, progress."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from xlt_training.encoders.student import Student
from xlt_training.loop import pretrained

PROGRESS = ("block", "step", "tokens", "seconds")


def write(
    folder: Path, student: Student, tokenizer: PreTrainedTokenizerFast, progress: dict[str, Any]
) -> None:
    """Put in place in one go: a reader finds the old folder or the new one."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    copy.deepcopy(student.language_model).half().save_pretrained(part)
    described = json.loads((part / "config.json").read_text())
    # What fine-tuning wants; distillation itself runs without dropout.
    described |= {
        "dtype": "float16",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    }
    (part / "config.json").write_text(json.dumps(described, indent=2, sort_keys=True) + "\n")
    projection = student.projection.state_dict()
    save_file(
        {name: value.half().contiguous() for name, value in projection.items()},
        part / "projection.safetensors",
    )
    pretrained.save_tokenizer(tokenizer, part)
    kept = {name: progress[name] for name in PROGRESS}
    (part / "progress.json").write_text(json.dumps(kept, indent=2) + "\n")
    for file in part.iterdir():
        file.chmod(0o644)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def read(folder: Path, student: Student) -> dict[str, Any]:
    """Put the folder's weights into ``student``; its progress."""
    weights = load_file(folder / "model.safetensors")
    student.language_model.load_state_dict(
        {name: value.float() for name, value in weights.items()}, strict=False
    )
    student.language_model.tie_weights()
    projection = load_file(folder / "projection.safetensors")
    student.projection.load_state_dict({name: v.float() for name, v in projection.items()})
    progress: dict[str, Any] = json.loads((folder / "progress.json").read_text())
    return progress
