"""Rows of a file as texts, in any format that ``xlt score`` reads too."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from xlt_serve.errors import DataError
from xlt_serve.files import codecs, formats
from xlt_serve.files.dialect import UNSAID, Dialect, sniffed
from xlt_serve.files.places import Source

SHOWN = 20
"""Bad rows that an error names in its own line."""

Row = dict[str, str]


def read_rows(path: Path) -> list[Row]:
    """Every row as texts by column name; all rows that can't be read are named in one error."""
    bad: list[str] = []
    rows = numbered_rows(path, bad)
    wanted = list(rows[0][1]) if rows else []
    for number, row in rows:
        if missing := [name for name in wanted if name not in row]:
            bad.append(f"row {number}: has no {', '.join(missing)}")
    refuse(path, bad)
    return [row for _, row in rows]


def numbered_rows(path: Path, bad: list[str], given: Dialect = UNSAID) -> list[tuple[int, Row]]:
    """Those rows that can be read, with their numbers in the file; of the others a sentence goes into
    ``bad``. ``given``: how the file is written, where that is said."""
    return list(each_row(path, bad, given))


def each_row(path: Path, bad: list[str], given: Dialect = UNSAID) -> Iterator[tuple[int, Row]]:
    """As ``numbered_rows``, one by one: a file of any size."""
    yield from _rows(source_of(path, given), bad)


def refuse(place: object, problems: Sequence[str], remedy: str = "mend them") -> None:
    """An error that names all rows that are bad; where they are many, stderr names those after the first."""
    if not problems:
        return
    shown = "; ".join(problems[:SHOWN])
    rest = problems[SHOWN:]
    more = f"; and {len(rest)} more, named above" if rest else ""
    for problem in rest:
        print(f"bad: {problem}", file=sys.stderr)
    count = "1 bad row" if len(problems) == 1 else f"{len(problems)} bad rows"
    raise DataError(place, f"has {count}: {shown}{more}", remedy)


def source_of(path: Path, given: Dialect = UNSAID) -> Source:
    """A file by its ending."""
    format, codec = codecs.told_by(path.name)
    if format is None or format == "txt":
        known = ", ".join(end for end, name in codecs.FORMATS.items() if name != "txt")
        raise DataError(path, f"has no known ending; known: {known}, also compressed")
    if path.is_dir():
        raise DataError(path, "is a folder", "give a file")
    if not path.exists():
        raise DataError(path, "is not there", "check the path of the data")
    found = sniffed(Source(str(path), path.name, format, codec), given)
    if found.encoding != "utf-8" and not given.encoding:
        _say(f"{path}: is not UTF-8, read as {found.encoding}")
    return found


@cache
def _say(guess: str) -> None:
    """Once, however often a file is looked into."""
    print(guess, file=sys.stderr)


def _rows(source: Source, bad: list[str]) -> Iterator[tuple[int, Row]]:
    number = 0
    for window in formats.read(source):
        for index, row in enumerate(window.rows):
            number += 1
            if index in window.bad:
                bad.append(window.bad[index][1])
                continue
            texts = _texts(row)
            if any(_is_cut(value) for value in texts.values()):
                bad.append(f"row {number}: is not valid UTF-8")
            else:
                yield number, texts


def _texts(row: dict[str, Any]) -> Row:
    """Values as texts; a null is an empty one."""
    return {key: "" if value is None else str(value) for key, value in row.items()}


def _is_cut(text: str) -> bool:
    """Whether it holds bytes that are no UTF-8 (see ``text_files``)."""
    return any("\ud800" <= character <= "\udfff" for character in text)
