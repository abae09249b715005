"""Which rows a run was trained and judged on, so that it does not go on with others unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from xlt_serve.errors import UsageError
from xlt_training.data.task_config import Splits
from xlt_training.loop.types import Example


def digests_of(train: Iterable[Example], data: Splits) -> dict[str, str]:
    """Of the rows that are trained on, and of the dev rows of each language."""
    dev = {f"dev {lg}": digest_of_rows(data.load("dev", lg)) for lg in data.languages("dev")}
    return {"train": digest_of_rows(train)} | dev


def digest_of_rows(examples: Iterable[Example]) -> str:
    """The first digits of a SHA-256; the order of the rows counts, as it does in training."""
    digest = hashlib.sha256()
    for each in examples:
        row = [each.text, each.pair, each.label, each.language, each.id]
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()[:16]


def refuse_other_rows(out: Path, before: Mapping[str, str] | None, now: Mapping[str, str]) -> None:
    """``before``: None of a run that did not record them."""
    if before is None or before == now:
        return
    names = sorted({*before, *now}, key=lambda name: (name != "train", name))
    changed = ", ".join(name for name in names if before.get(name) != now.get(name))
    raise UsageError(
        out,
        f"holds a run on other rows ({changed} differ from those that are there now)",
        "give another --out, or put the old rows back",
    )
