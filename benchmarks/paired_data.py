"""Sentences of SIB-200 with their recorded machine translations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xlt_training.data import load_split
from xlt_training.loop.types import Example

from xlt_serve.files.rows import read_rows

TASK, SOURCE = "sib200", "en"


@dataclass(frozen=True)
class Item:
    """A sentence with its recorded translation."""

    example: Example
    translation: str


@dataclass(frozen=True)
class Language:
    split: str
    items: list[Item]


def recorded(data: Path) -> dict[str, Language]:
    """language → the sentences of its test split, else dev, that have a recorded translation."""
    folder = data / TASK / "mt"
    out = {}
    for file in sorted(folder.glob(f"*-{SOURCE}.dev.tsv")):
        language = file.name.split("-")[0]
        split = "test" if (folder / f"{language}-{SOURCE}.test.tsv").is_file() else "dev"
        rows = read_rows(folder / f"{language}-{SOURCE}.{split}.tsv")
        translations = {row["id"]: row["text"] for row in rows if row["text"].strip()}
        examples = load_split(TASK, data, split, language)
        items = [Item(e, translations[e.id]) for e in examples if e.id in translations]
        out[language] = Language(split, items)
    return out


def digest(items: Sequence[Item]) -> str:
    """Of the translations and of what they belong to."""
    told = [[item.example.id, item.translation] for item in items]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
