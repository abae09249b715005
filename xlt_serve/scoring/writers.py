"""A window and its predictions as bytes of the output; the same bytes whenever it is asked for."""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xlt_serve.errors import DataError, UsageError
from xlt_serve.files.codecs import compress
from xlt_serve.files.packages import arrow
from xlt_serve.files.window import Row, Window
from xlt_serve.scoring import columns, staging
from xlt_serve.scoring.answered import Answer
from xlt_serve.scoring.choice import ALL, Choice
from xlt_serve.scoring.input_columns import Kept

DELIMITERS = {"csv": ",", "tsv": "\t"}
_BREAKS = str.maketrans("\t\n\r", "   ")


@dataclass(frozen=True, slots=True)
class Writer:
    """How one output is written. ``names``: the fields of a prediction that are added, each behind
    ``prefix``; ``about``: what a Parquet file says of itself."""

    format: str
    codec: str | None
    kept: Kept
    names: tuple[str, ...]
    prefix: str
    labels: tuple[str, ...]
    about: dict[str, str]
    choice: Choice = ALL

    def header(self) -> bytes:
        if self.format not in DELIMITERS:
            return b""
        names = [*(self.kept.names or ()), *(self.prefix + name for name in self.names)]
        return compress(self._delimited([names]), self.codec)

    def window(self, window: Window, found: Sequence[Answer], keys: Row) -> bytes:
        if self.format == "parquet":
            return staging.stage(self._table(window, found, keys))
        rows = self._rows(window, keys)
        if self.format == "jsonl":
            data = b"".join(map(self._json, rows, found))
        else:
            names = self.kept.names or ()
            for row in rows:
                self._refuse_unknown(row)
            data = self._delimited(
                [
                    [
                        *(columns.flat(row.get(name)) for name in names),
                        *(columns.flat(new[name]) for name in self.names),
                    ]
                    for row, new in zip(rows, found, strict=True)
                ]
            )
        return compress(data, self.codec)

    def schema(self) -> Any:
        """Arrow's, of the whole output."""
        pa = arrow("Parquet")
        kept = self.kept.arrow_schema()
        fields = [*kept]
        for name in self.names:
            fields.append(pa.field(self.prefix + name, columns.arrow_type(name, self.labels)))
        return pa.schema(fields, metadata={**(kept.metadata or {}), **self.about})

    def _rows(self, window: Window, keys: Row) -> list[Row]:
        if not keys and self.choice == ALL:
            return window.rows
        return [
            {name: value for name, value in (row | keys).items() if self.choice.has(name)}
            for row in window.rows
        ]

    def _json(self, row: Row, new: dict[str, Any]) -> bytes:
        own = {self.prefix + name: new[name] for name in self.names}
        if clash := sorted(row.keys() & own.keys()):
            raise UsageError(
                ", ".join(clash),
                "is in the input already",
                f"give another --prefix than {self.prefix}",
            )
        whole = row | own
        line = json.dumps(whole, ensure_ascii=False, default=_plain)
        # A lone surrogate is written as the escape that JSON has for it.
        return (line + "\n").encode("utf-8", "backslashreplace")

    def _delimited(self, rows: Sequence[Sequence[str]]) -> bytes:
        if self.format == "tsv":
            lines = ["\t".join(value.translate(_BREAKS) for value in row) for row in rows]
        else:
            sink = _Sink()
            csv.writer(sink).writerows(rows)
            lines = sink.lines
        return "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")

    def _table(self, window: Window, found: Sequence[dict[str, Any]], keys: Row) -> Any:
        pa = arrow("Parquet")
        schema = self.schema()
        if window.table is not None:
            arrays = {name: window.table.column(name) for name in window.table.column_names}
            for name, value in keys.items():
                arrays[name] = pa.array([value] * len(window.rows), pa.string())
        else:
            rows = self._rows(window, keys)
            arrays = {name: self._column(name, rows) for name in self.kept.names or ()}
            for row in rows:
                self._refuse_unknown(row)
        for name in self.names:
            values = [new[name] for new in found]
            arrays[self.prefix + name] = columns.arrow_values(name, values, self.labels)
        return pa.table([arrays[field.name] for field in schema], schema=schema)

    def _column(self, name: str, rows: Sequence[Row]) -> Any:
        pa = arrow("Parquet")
        kind = self.kept.arrow_schema().field(name).type
        values = [row.get(name) for row in rows]
        if kind == pa.string():
            values = [None if value is None else _valid(columns.flat(value)) for value in values]
        try:
            return pa.array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataError(
                f"column {name}", f"changes its type on the way ({error})", _PIPE
            ) from None

    def _refuse_unknown(self, row: Row) -> None:
        """From a pipe, later rows may have keys that the header does not."""
        if len(row) > len(self.kept.names or ()) or not row.keys() <= set(self.kept.names or ()):
            extra = sorted(row.keys() - set(self.kept.names or ()))
            raise DataError(f"column {', '.join(extra)}", "is not in the first rows", _PIPE)


_PIPE = "write JSON lines, or score a file instead of a pipe"


class _Sink:
    """Rows of the csv module without their ends. It quotes \\r only where \\r is part of those."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, line: str) -> None:
        self.lines.append(line.removesuffix("\r\n"))


def _plain(value: Any) -> Any:
    """What JSON has no word for."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def _valid(value: str) -> str:
    return value.encode("utf-8", "replace").decode("utf-8", "replace")
