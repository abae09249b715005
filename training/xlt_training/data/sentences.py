"""Twenty everyday sentences in each of 21 languages, written for this project: text to compare two forms
of a model on where nobody gives any. They have no labels, and say nothing of how good a model is."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("sentences.tsv")


@cache
def sentences() -> dict[str, tuple[str, ...]]:
    """language → its sentences, which say the same in each."""
    out: dict[str, list[str]] = {}
    with FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            out.setdefault(row["language"], []).append(row["text"])
    return {language: tuple(texts) for language, texts in out.items()}
