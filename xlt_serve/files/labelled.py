"""Labelled texts in files of one's own: one file for all languages, or one for each."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from xlt_serve.errors import DataError
from xlt_serve.files import codecs, formats
from xlt_serve.files.dialect import UNSAID, Dialect
from xlt_serve.files.rows import Row, each_row, numbered_rows, source_of

CODE = re.compile(r"(?:.*[-_])?([a-z]{2,3}(?:[-_](?:[A-Z][a-z]{3}|[A-Z]{2}))?)")

Place: TypeAlias = str | Mapping[str, str]
"""A file; a pattern with ``{language}``; a folder with a file for each language; or language → file."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What the columns are called; "" for what there is not (without ``label``: rows of text alone)."""

    text: str = "text"
    label: str = "label"
    pair: str = ""
    id: str = ""
    language: str = ""

    def needed(self) -> list[str]:
        """Those that every row must fill."""
        return [name for name in (self.text, self.label, self.pair, self.language) if name]

    def check(self, names: Sequence[str], place: object) -> None:
        roles = {"text": self.text, "label": self.label, "pair": self.pair, "id": self.id}
        for role, name in (roles | {"language": self.language}).items():
            if name and name not in names:
                raise DataError(
                    place,
                    f"has no column {name!r} (for {role}); it has: {', '.join(names)}",
                    "name another",
                )


@dataclass(frozen=True, slots=True)
class Labelled:
    """``id`` is shared by translations of one text."""

    text: str
    label: str
    language: str
    pair: str | None = None
    id: str = ""

    @property
    def item(self) -> str | tuple[str, str]:
        """As a classifier takes it."""
        return self.text if self.pair is None else (self.text, self.pair)


def read(
    place: Place,
    columns: Columns,
    language: str,
    bad: list[str],
    marked: bool = True,
    given: Dialect = UNSAID,
) -> list[Labelled]:
    """The rows of all files of a place, ``language`` where nothing says another. Of rows that can't be
    read, or have no text or label, a sentence goes into ``bad``. ``marked``: every file must have the
    column of languages. ``given``: how the files are written, where that is said."""
    out: list[Labelled] = []
    for told, file in files_of(place).items():
        problems: list[str] = []
        rows = numbered_rows(file, problems, given)
        here = columns
        if rows and not marked and columns.language not in rows[0][1]:
            here = replace(columns, language="")
        found = labelled(rows, here, told or language, file, problems)
        bad += [f"{file} {problem}" for problem in problems]
        if not found and not problems:
            raise DataError(file, "has no rows")
        out += found
    return out


def labelled(
    rows: Sequence[tuple[int, Row]],
    columns: Columns,
    language: str,
    place: object,
    bad: list[str],
) -> list[Labelled]:
    """Numbered rows as labelled texts; a missing column is an error that names those there are."""
    if rows:
        columns.check(list(rows[0][1]), place)
    found = (_one(number, row, columns, columns.needed(), language, bad) for number, row in rows)
    return [row for row in found if row is not None]


def _one(
    number: int, row: Row, columns: Columns, needed: Sequence[str], language: str, bad: list[str]
) -> Labelled | None:
    """A row as a labelled text; None, with a sentence in ``bad``, where a needed column is empty."""
    if empty := [name for name in needed if not row.get(name, "").strip()]:
        bad.append(f"row {number}: has an empty {empty[0]}")
        return None
    label = row.get(columns.label, "")
    return Labelled(
        text=row[columns.text],
        label=label if label.strip() else "",
        language=_spelt(row[columns.language]) if columns.language else language,
        pair=row[columns.pair] if columns.pair else None,
        id=row.get(columns.id, "") or str(number - 1),
    )


def _spelt(language: str) -> str:
    """EN is en, as answers and the names of files have it."""
    code = language.strip()
    return code.lower() if re.fullmatch("[A-Za-z]{2,3}", code) else code


@dataclass(frozen=True, slots=True)
class Stated:
    """A row of a file, its label empty where it has none; ``values``: all its columns."""

    file: Path
    number: int
    row: Labelled
    values: Row


def stream(
    place: Place, columns: Columns, language: str, bad: list[str], given: Dialect = UNSAID
) -> Iterator[Stated]:
    """The rows of all files of a place one by one, labelled or not: files of any size. A missing column
    is an error before the first row; of bad rows a sentence goes into ``bad``, as in ``read``."""
    files = files_of(place)
    for file in files.values():
        columns.check(formats.columns(source_of(file, given)), file)
    needed = [name for name in columns.needed() if name != columns.label]
    for told, file in files.items():
        problems: list[str] = []
        for number, values in each_row(file, problems, given):
            row = _one(number, values, columns, needed, told or language, problems)
            if row is not None:
                yield Stated(file, number, row, values)
        bad += [f"{file} {problem}" for problem in problems]


def has_column(place: Place, name: str, given: Dialect = UNSAID) -> bool:
    """Of the first file; of one that is not there the reader tells."""
    file = next(iter(files_of(place).values()))
    return file.is_file() and name in formats.columns(source_of(file, given))


def files_of(place: Place) -> dict[str, Path]:
    """Language → file; "" stands for one file of all languages."""
    if isinstance(place, Mapping):
        return {language: Path(file) for language, file in place.items()}
    if not place:
        return {}
    if "{language}" in place:
        return _by_pattern(place)
    if Path(place).is_dir():
        return _in_folder(Path(place))
    return {"": Path(place)}


def _by_pattern(pattern: str) -> dict[str, Path]:
    before, _, after = pattern.partition("{language}")
    folder, start = Path(before + "x").parent, before.rpartition("/")[2]
    shape = re.compile(f"{re.escape(start)}([^/]+){re.escape(after)}")
    found = {
        match[1]: file
        for file in sorted(folder.glob(f"{glob.escape(start)}*{glob.escape(after)}"))
        if (match := shape.fullmatch(file.relative_to(folder).as_posix()))
    }
    if not found:
        raise DataError(pattern, "matches no file", "check the folder and the ending")
    return found


def _in_folder(folder: Path) -> dict[str, Path]:
    """Each file by the language at its name's end: ``de.csv``, ``dev-de.csv``, ``dev_zh-Hans.csv.gz``."""
    out: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        if file.name.startswith(".") or codecs.told_by(file.name)[0] in (None, "txt"):
            continue
        match = CODE.fullmatch(file.name.partition(".")[0])
        if match is None:
            raise DataError(file, "has no language at its name's end", "name it as dev-de.csv")
        language = match[1].replace("_", "-")
        if language in out:
            raise DataError(
                folder, f"has two files of {language!r}: {out[language].name} and {file.name}"
            )
        out[language] = file
    if not out:
        raise DataError(folder, "has no file of rows", "name them as dev-de.csv")
    return out
