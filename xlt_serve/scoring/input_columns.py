"""The columns that are kept: which there are, and of which type, before the first row is scored.

CSV and Parquet must say it in advance. Where the input says it too, we ask it; JSON lines are read
through once, so that a key that first occurs in the last line has its column too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from xlt_serve.errors import DataError
from xlt_serve.files import parquet
from xlt_serve.files import text_files as text
from xlt_serve.files.packages import arrow
from xlt_serve.files.places import Source
from xlt_serve.files.window import Row
from xlt_serve.scoring.choice import ALL, Choice

KINDS: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "text"}


@dataclass(frozen=True, slots=True)
class Kept:
    """``names``: in order, or None where each row has its own (JSON lines to JSON lines). ``schema``:
    Arrow's, where the input is Parquet; ``kinds``: bool, int, float, text or json, where it isn't."""

    names: tuple[str, ...] | None
    kinds: dict[str, str]
    schema: Any = None

    def only(self, choice: Choice) -> Kept:
        """Of these columns those that were chosen."""
        if choice == ALL or self.names is None:
            return self
        names = tuple(name for name in self.names if choice.has(name))
        if self.schema is None:
            return Kept(names, {n: kind for n, kind in self.kinds.items() if n in names})
        fields = [self.schema.field(name) for name in names]
        # Without what pandas says of columns that may be gone.
        return Kept(names, {}, arrow("Parquet").schema(fields))

    def arrow_schema(self) -> Any:
        pa = arrow("Parquet")
        if self.schema is not None:
            return self.schema
        types = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64()}
        kinds = {name: self.kinds.get(name, "text") for name in self.names or ()}
        return pa.schema([(name, types.get(kind, pa.string())) for name, kind in kinds.items()])


def keep(sources: Sequence[Source], output: str, with_keys: bool) -> Kept:
    """What the files of one output have in common; ``with_keys``: also what their folders say."""
    keys = tuple(dict.fromkeys(k for source in sources for k in source.keys)) if with_keys else ()
    first = sources[0]
    if first.format == "parquet":
        return _of_parquet(sources, keys)
    if first.format == "jsonl":
        if output == "jsonl":
            return Kept(None, {})
        rows = (row for source in sources for window in text.windows(source) for row in window.rows)
        return of_rows(rows, keys)
    names = text.columns(first)
    for other in sources[1:]:
        if set(text.columns(other)) != set(names):
            raise DataError(
                other.url,
                f"has the columns {', '.join(text.columns(other))}, {first.url} has "
                f"{', '.join(names)}",
                "score them into a folder (OUT/), or give them the same columns",
            )
    return Kept((*names, *(key for key in keys if key not in names)), {})


def of_rows(rows: Iterable[Row], keys: Sequence[str] = ()) -> Kept:
    """The union of all keys, in the order of their first occurrence, and a type that fits all."""
    kinds: dict[str, str | None] = {}
    for row in rows:
        for name, value in row.items():
            kinds[name] = _joined(kinds.get(name), _kind(value))
    names = (*kinds, *(key for key in keys if key not in kinds))
    return Kept(names, {name: kind or "text" for name, kind in kinds.items()})


def _kind(value: Any) -> str | None:
    if value is None:
        return None
    if type(value) is int and not -(2**63) <= value < 2**63:
        return "json"
    return KINDS.get(type(value), "json")


def _joined(first: str | None, second: str | None) -> str | None:
    if first == second or second is None:
        return first
    if first is None:
        return second
    return "float" if {first, second} == {"int", "float"} else "json"


def _of_parquet(sources: Sequence[Source], keys: Sequence[str]) -> Kept:
    pa = arrow("Parquet")
    schemas = [parquet.schema(source) for source in sources]
    for source, schema in zip(sources, schemas, strict=True):
        if not schema.equals(schemas[0]):
            raise DataError(
                source.url,
                f"has another schema than {sources[0].url}",
                "score them into a folder (OUT/), or give them the same columns",
            )
    whole = schemas[0]
    for key in keys:
        if key not in whole.names:
            whole = whole.append(pa.field(key, pa.string()))
    return Kept(tuple(whole.names), {}, whole)
