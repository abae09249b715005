"""Training runs of a benchmark: which results on disk are still theirs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from xlt_training.loop import trainer


def kept(file: Path, stamp: dict[str, Any]) -> dict[str, Any] | None:
    """What a run left in ``file``, if it has this stamp: the same config, weights and texts.

    The folder of another is removed, as its figures would go by a name that is no longer theirs. A
    run of this config that was stopped stays, to go on.
    """
    folder = file.parent
    if file.is_file():
        found: dict[str, Any] = json.loads(file.read_text())
        if found.get("stamp") == stamp:
            return found
    elif not folder.exists() or _is_begun(folder, stamp["run"]):
        return None
    print(f"{folder}: is of another config, encoder or data; removed, to train again", flush=True)
    shutil.rmtree(folder)
    return None


def _is_begun(folder: Path, run: dict[str, Any]) -> bool:
    file = folder / trainer.RUN
    return file.is_file() and json.loads(file.read_text(encoding="utf-8")) == run


def tidy(folder: Path, weights: bool = False) -> None:
    """Remove what takes much room and is not read again; ``weights``: keep those."""
    if not weights:
        for heavy in ("model.safetensors", "slots.safetensors"):
            (folder / heavy).unlink(missing_ok=True)
    shutil.rmtree(folder / "logs", ignore_errors=True)
