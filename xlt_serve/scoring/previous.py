"""Rows of a finished output, found again by a key of theirs and their text.

They are copied into a small database beside the work, so that memory does not grow with them, and a run
that is killed goes on with the same ones, whatever has become of the output by then.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xlt_serve.errors import UsageError
from xlt_serve.files import formats
from xlt_serve.files.nested import value_of
from xlt_serve.files.places import Source
from xlt_serve.files.window import Row, Window
from xlt_serve.scoring import columns
from xlt_serve.scoring.answered import Answer
from xlt_serve.scoring.order import Order

NAME = "previous.sqlite"
_BREAKS = str.maketrans("\t\n\r", "   ")


class Previous:
    """The answers to rows that are as they were."""

    def __init__(self, file: Path, order: Order) -> None:
        self._rows = _Rows(order)
        uri = f"{file.absolute().as_uri()}?mode=ro&immutable=1"
        self._database = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self.found = 0

    def answers(self, window: Window) -> dict[int, Answer]:
        out = {}
        for number, row in enumerate(window.rows):
            if number in window.bad:
                continue
            key = self._rows.key(row)
            found = self._database.execute("SELECT answer FROM rows WHERE key = ?", (key,))
            if (line := found.fetchone()) is not None:
                out[number] = json.loads(line[0])
        self.found += len(out)
        return out


def copy(outputs: Sequence[Source], order: Order, file: Path) -> None:
    """All answered rows of an output, whole or not at all; errors are tried again."""
    if file.exists():
        return
    half = file.with_name(f"{NAME}.half")
    half.unlink(missing_ok=True)
    database = sqlite3.connect(half)
    try:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute("CREATE TABLE rows (key BLOB PRIMARY KEY, answer TEXT) WITHOUT ROWID")
        for output in outputs:
            database.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?)", _rows(output, order))
        database.commit()
    finally:
        database.close()
    half.replace(file)


def _rows(output: Source, order: Order) -> Iterator[tuple[bytes, str]]:
    rows = _Rows(order)
    names = columns.possible(order.mode)
    for window in formats.read(output):
        for row in window.rows:
            rows.refuse_without(row, output)
            answer = {name: row.get(order.prefix + name) for name in names}
            if not answer["error"]:
                yield rows.key(row), json.dumps(answer)


class _Rows:
    """Rows by what tells them apart: texts alone, since formats differ in what else they know."""

    def __init__(self, order: Order) -> None:
        named = (order.key, order.text, order.pair, order.translation)
        self._names = [name for name in named if name]

    def key(self, row: Row) -> bytes:
        values = [columns.flat(value_of(row, name)).translate(_BREAKS) for name in self._names]
        whole = json.dumps(values).encode()
        return hashlib.blake2b(whole, digest_size=16).digest()

    def refuse_without(self, row: Mapping[str, Any], output: Source) -> None:
        for name in self._names:
            if name not in row and value_of(row, name) is None and name.split(".")[0] not in row:
                raise UsageError(
                    f"--key {self._names[0]}",
                    f"{output.url} has no column {name}, so that nobody can tell what changed",
                    "score it with that column kept, once, with --overwrite",
                )
