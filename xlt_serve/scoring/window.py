"""What is read, answered and written at a time: some rows of one file, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]

MOST_ROWS = 4096
"""Rows in a window: enough texts of each length for full batches."""
MOST_BYTES = 8 << 20
"""Bytes of input in a window (one row may be larger): this, not the file, bounds the memory."""
SLICE_ROWS, LEAST_ROWS = 256, 32
SLICE_TOKENS, LEAST_TOKENS = 16 << 10, 2 << 10
"""A slice is what one core answers at a time: some batches of texts of similar length."""
LEFT = 6
"""A slice takes at most this part of what is left, so that the last ones are small and the cores end
together."""


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
    that were read. ``progress``: the share of the file that is read with this window."""

    rows: list[Row]
    end: Position
    bad: dict[int, tuple[str, str]] = field(default_factory=dict)
    table: Any = None
    digest: str = ""
    progress: float = 0.0


def slices(
    sizes: Sequence[int], rows: int = SLICE_ROWS, size: int = SLICE_TOKENS
) -> list[list[int]]:
    """Row numbers by size, the largest first, cut where a slice has ``rows`` or ``size`` tokens, or a
    fair part of those that are left.

    A function of the sizes alone: whatever was killed and resumed in between, or how many cores
    share the work, the same texts run together.
    """
    out: list[list[int]] = []
    held = most_rows = most_tokens = 0
    tokens_left = sum(sizes)
    for done, index in enumerate(sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))):
        if not out or len(out[-1]) >= most_rows or held + sizes[index] > most_tokens:
            out.append([])
            held = 0
            most_rows = min(rows, max(LEAST_ROWS, (len(sizes) - done) // LEFT))
            most_tokens = min(size, max(LEAST_TOKENS, tokens_left // LEFT))
        tokens_left -= sizes[index]
        out[-1].append(index)
        held += sizes[index]
    return out
