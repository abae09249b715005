"""What a model was trained on, in a few numbers that travel with it: names of files, rows, labels."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from xlt_serve.files.labelled import Place, files_of
from xlt_training.data.task_config import TaskConfig
from xlt_training.loop.types import Example


def trained_on(task: TaskConfig, examples: Sequence[Example]) -> dict[str, Any]:
    """Rows by language and by label; of files of one's own also their names, without folders."""
    out: dict[str, Any] = {
        "rows": dict(Counter(example.language for example in examples).most_common()),
        "labels": dict(Counter(example.label for example in examples).most_common()),
    }
    if task.name == "files":
        places = {"train": task.train, "dev": task.dev}
        out["files"] = {split: _names(place) for split, place in places.items() if place}
    return out


def _names(place: Place) -> list[str]:
    """A name that is no UTF-8 is written with marks for what is not."""
    names = {os.fsencode(file.name).decode("utf-8", "replace") for file in files_of(place).values()}
    return sorted(names)
