"""The tab-separated files of the data folder: UTF-8, no quoting, no line breaks inside a field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def lines(path: Path) -> list[str]:
    """The lines that are not empty; only a line feed ends one."""
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line]


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Every line as {column: field}, the columns being those of the first."""
    header, *rest = lines(path)
    columns = header.split("\t")
    for line in rest:
        yield dict(zip(columns, line.split("\t"), strict=True))
