"""What methods may know of a run on the toy data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xlt_training.data import languages
from xlt_training.loop.method import Context


def context_of(
    folder: Path, source: str = "en", task: str = "sib200", seed: int = 0, **more: Any
) -> Context:
    there = languages(task, folder, "dev")
    return Context(source, seed, folder / "lexicons", folder / task / "mt", there, **more)
