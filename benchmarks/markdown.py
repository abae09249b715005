"""Tables of the reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table."""
    return [_line(head), "|---" * len(head) + "|", *(_line(row) for row in rows)]


def _line(cells: Sequence[object]) -> str:
    return "|" + "".join(f" {cell} |" if cell != "" else " |" for cell in cells)
