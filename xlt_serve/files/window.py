"""What is read at a time: some rows of one file, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]

MOST_ROWS = 4096
"""Rows in a window: enough texts of each length for full batches."""
MOST_BYTES = 8 << 20
"""Bytes of input in a window (one row may be larger): this, not the file, bounds the memory."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where the next window begins: ``offset`` in bytes of the decompressed text, or in rows of
    Parquet; ``line``: how many lines (rows of Parquet) are before it, for messages."""

    offset: int = 0
    line: int = 0


BEGIN = Position()


@dataclass(slots=True)
class Window:
    """``bad``: by row number, why a row could not be read; such a row has what could be read of it.
    ``table``: the same rows with Arrow's types, where the file has them. ``digest``: of the bytes
    that were read. ``progress``: the share of the file that is read with this window; ``size``: about
    how many bytes its rows hold."""

    rows: list[Row]
    end: Position
    bad: dict[int, tuple[str, str]] = field(default_factory=dict)
    table: Any = None
    digest: str = ""
    progress: float = 0.0
    size: int = 0
