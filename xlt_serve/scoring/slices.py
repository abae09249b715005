"""What a core answers at a time: rows of similar length."""

from __future__ import annotations

from collections.abc import Sequence

SLICE_ROWS, LEAST_ROWS = 256, 32
SLICE_TOKENS, LEAST_TOKENS = 16 << 10, 2 << 10
"""A slice is what one core answers at a time: some batches of texts of similar length."""
LEFT = 6
"""A slice takes at most this part of what is left, so that the last ones are small and the cores end
together."""


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
