"""The columns that an order names, looked for in every file before the first row is scored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xlt_serve.bundle import Bundle
from xlt_serve.errors import DataError, UsageError
from xlt_serve.files import parquet, places
from xlt_serve.files import text_files as text
from xlt_serve.files.formats import columns as columns_of
from xlt_serve.files.nested import names_of, value_of
from xlt_serve.files.packages import arrow
from xlt_serve.files.places import Source
from xlt_serve.files.window import Row
from xlt_serve.scoring import columns
from xlt_serve.scoring.order import Layout, Order


@dataclass(frozen=True, slots=True)
class Seen:
    """What a file has: ``names`` of its columns, ``inner`` those of fields within them, ``kinds`` of
    Parquet, the first ``rows`` of JSON lines."""

    source: Source
    names: list[str]
    inner: list[str]
    kinds: Mapping[str, Any]
    rows: Sequence[Row]


def with_columns(order: Order, bundle: Bundle, found: Layout) -> Order:
    """The order with its text columns named, after making sure that all of the input has them."""
    _refuse_pair(order, bundle)
    files = [seen(source) for unit in found.units for source in unit.sources]
    keyed = {key for unit in found.units if unit.keyed for s in unit.sources for key in s.keys}
    first = files[0]
    guessed = first.names[0] if len(first.names) == 1 else "text"
    wanted = {"--text": order.text or guessed, "--pair": order.pair}
    wanted |= {"--translation": order.translation, "--key": order.key}
    added = {order.prefix + name for name in columns.added(order.mode, bundle.manifest)}
    for file in files:
        keys = keyed & file.source.keys.keys()
        for option, name in wanted.items():
            if name and file.names and name not in keys:
                _refuse_missing(file, option, name)
                if option != "--key":
                    _refuse_no_text(file, option, name)
        have = {*file.names, *keys}
        if file.names and (unknown := order.choice.unknown(have)):
            raise UsageError(
                ", ".join(unknown),
                f"is no column of {file.source.url}; it has {', '.join(file.names)}",
                "give --keep or --drop columns that all files have",
            )
        if clash := sorted(added & {name for name in have if order.choice.has(name)}):
            raise UsageError(
                ", ".join(clash),
                f"is in the input already ({file.source.url})",
                f"give another --prefix than {order.prefix}",
            )
    return replace(order, text=wanted["--text"])


def seen(source: Source) -> Seen:
    """What can be known of a file by its beginning; of a pipe nothing."""
    places.refuse_misnamed(source)
    if source.format == "parquet":
        schema = parquet.schema(source)
        if twice := [name for name, count in Counter(schema.names).items() if count > 1]:
            raise DataError(source.url, f"names a column twice: {', '.join(twice)}", "rename one")
        kinds = dict(_kinds(schema))
        return Seen(source, list(schema.names), [*kinds], kinds, [])
    if source.format == "jsonl" and not source.is_pipe:
        window = next(text.windows(source), None)
        rows = window.rows if window else []
        if window and 0 in window.bad and len(window.rows) == len(window.bad):
            _refuse_array(source)
        names = list(dict.fromkeys(name for row in rows for name in row))
        inner = list(dict.fromkeys(name for row in rows for name in names_of(row)))
        return Seen(source, names, inner, {}, rows)
    names = columns_of(source)
    return Seen(source, names, names, {}, [])


def _refuse_pair(order: Order, bundle: Bundle) -> None:
    pair = bundle.manifest.pair
    if pair and not order.pair:
        raise UsageError(
            bundle.manifest.name,
            "classifies pairs of texts",
            "name their columns: --text A --pair B",
        )
    if order.pair and not pair:
        raise UsageError(
            f"--pair {order.pair}",
            f"{bundle.manifest.name} classifies single texts",
            "leave it out",
        )


def _refuse_missing(file: Seen, option: str, name: str) -> None:
    if name in file.names or name in file.inner:
        return
    below = [inner for inner in file.inner if inner.endswith(f".{name}")]
    raise UsageError(
        f"{option} {name}",
        f"is no column of {file.source.url}; it has {', '.join(file.names)}",
        f"it may be {' or '.join(below)}" if below else "",
    )


def _refuse_no_text(file: Seen, option: str, name: str) -> None:
    """A column of something else is refused at once: it would be an error in every row."""
    fields = [inner for inner in file.inner if inner.startswith(f"{name}.")]
    remedy = f"name a field of it: {fields[0]}" if fields else "make it a column of strings"
    kind = file.kinds.get(name)
    if kind is not None and not _is_text(kind):
        shown = "struct" if fields else kind
        raise UsageError(
            f"{option} {name}", f"is {shown} in {file.source.url}, and texts are strings", remedy
        )
    values = [value for row in file.rows if (value := value_of(row, name)) is not None]
    if values and all(isinstance(value, dict | list) for value in values):
        raise UsageError(
            f"{option} {name}",
            f"holds JSON objects or lists in {file.source.url}, and texts are strings",
            remedy,
        )


def _is_text(kind: Any) -> bool:
    types = arrow("Parquet").types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_null(kind)
    )


def _kinds(fields: Any, before: str = "") -> Any:
    """Each column and each field within one, with its type."""
    for field in fields:
        yield before + field.name, field.type
        if arrow("Parquet").types.is_struct(field.type):
            yield from _kinds(field.type, f"{before}{field.name}.")


def _refuse_array(source: Source) -> None:
    """One array of all rows instead of a row a line, where no line is a row."""
    with places.opened(source) as raw:
        line = text.beginning(source, raw).lstrip(b"\xef\xbb\xbf \t\r\n")
    if line.startswith(b"["):
        raise DataError(
            source.url,
            "is a JSON array, not JSON lines",
            f"make a line of each entry: jq -c '.[]' {json.dumps(source.url)}",
        )
