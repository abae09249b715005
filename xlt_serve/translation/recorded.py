"""Translations that were made before: a table, for evaluation and as a cache that outlives a process."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from xlt_serve.errors import DataError
from xlt_serve.translation.protocol import Translation

logger = logging.getLogger(__name__)

COLUMNS = ("source", "target", "text", "translation")


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """One line of a table: ``text`` in the language ``source``, its translation in ``target``."""

    source: str
    target: str
    text: str
    translation: str
    engine: str = ""
    quality: float | None = None


@dataclass
class Recorded:
    """A translator that knows only what it was given. Space around a text does not matter."""

    name: str = "recorded"
    _table: dict[tuple[str, str, str], Translation] = field(default_factory=dict)

    def add(self, rows: Iterable[RecordedRow]) -> Recorded:
        for row in rows:
            found = Translation(row.translation, row.engine or self.name, row.quality)
            self._table[row.source, row.target, row.text.strip()] = found
        return self

    def takes(self, source: str, target: str) -> bool:
        return True  # a missing text is cheap to find out about

    async def translate(
        self, texts: Sequence[str], source: str, target: str
    ) -> list[Translation | None]:
        return [self._table.get((source, target, text.strip())) for text in texts]

    def close(self) -> None:
        return

    def __len__(self) -> int:
        return len(self._table)


def read(file: Path, torn: bool = False) -> list[RecordedRow]:
    """JSON lines, or tab-separated with a header; columns source, target, text, translation, and if
    there are any engine and quality. ``torn``: lines that a killed process left behind half written
    are passed over."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise DataError(file, "is not there", "give a table of translations") from None
    except (UnicodeDecodeError, OSError) as error:
        raise DataError(file, f"can't be read ({error})", "save it as UTF-8") from None
    out = []
    header: list[str] | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if line.lstrip().startswith("{"):
            try:
                out.append(_row(_json(line, file, number), file, number))
            except DataError:
                if not torn:
                    raise
        elif torn:
            continue
        elif header is None:
            header = line.rstrip("\r").split("\t")
        else:
            values = dict(zip(header, line.rstrip("\r").split("\t"), strict=False))
            out.append(_row(values, file, number))
    return out


class Recorder:
    """Appends what was translated to a file that ``read`` takes, a line at a time and each in one
    write, since several processes may share the file. It is a help, no duty: where it can't write it
    says so once, and translating goes on."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._handle: IO[bytes] | None = None
        self._given_up = False

    def write(self, row: RecordedRow) -> None:
        if self._given_up:
            return
        values = {name: getattr(row, name) for name in (*COLUMNS, "engine", "quality")}
        line = json.dumps(values, ensure_ascii=False).encode() + b"\n"
        try:
            if self._handle is None:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                line = b"\n" * _ends_within_a_line(self.file) + line
                self._handle = self.file.open("ab", buffering=0)
            self._handle.write(line)
        except OSError as error:
            self._given_up = True
            logger.warning("%s: can't be written (%s); nothing more is recorded", self.file, error)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None


def _ends_within_a_line(file: Path) -> bool:
    """A process that was killed may have left half a line behind."""
    if not file.is_file() or not file.stat().st_size:
        return False
    with file.open("rb") as handle:
        handle.seek(-1, 2)
        return handle.read(1) != b"\n"


def _json(line: str, file: Path, number: int) -> Mapping[str, Any]:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{file} line {number}", f"is not JSON ({error})", "take it out") from None
    assert isinstance(values, dict)
    return values


def _row(values: Mapping[str, Any], file: Path, number: int) -> RecordedRow:
    for name in COLUMNS:
        if not isinstance(values.get(name), str) or not values[name].strip():
            raise DataError(
                f"{file} line {number}",
                f"has no {name}",
                f"a table of translations has the columns {', '.join(COLUMNS)}",
            )
    quality = values.get("quality")
    return RecordedRow(
        source=values["source"],
        target=values["target"],
        text=values["text"],
        translation=values["translation"],
        engine=str(values.get("engine") or ""),
        quality=None if quality in (None, "") else float(quality),
    )
