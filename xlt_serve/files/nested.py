"""Fields within fields: ``doc.body`` is what ``body`` is in the object ``doc``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def value_of(row: Mapping[str, Any], name: str) -> Any:
    """Of the column of this name, else of the path that its dots make; None where there is nothing."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def names_of(row: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """All names under which a row has a value, objects and what is in them."""
    for name, value in row.items():
        yield before + name
        if isinstance(value, Mapping):
            yield from names_of(value, f"{before}{name}.")
