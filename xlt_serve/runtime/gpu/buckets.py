"""Which shapes a GPU runs: lengths × rows, few enough to prepare, close enough to waste little.

TensorRT profiles, CUDA graphs and device buffers all need shapes that are known beforehand; a batch
is padded up to the next one. Pure arithmetic.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xlt_serve.errors import BundleError, UsageError

LENGTHS = 6
"""Buckets of length: each more costs buffers and captured graphs, and saves less padding."""

ROWS = 64
"""Most rows in one run. One TensorRT profile spans rows × lengths, so its corner must be bearable."""

STEP = 8
"""Lengths are multiples of it: tensor cores work in tiles of 8."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """``rows[length]``: the row counts, ascending, that run at that length; ``common``: the
    (rows, length) that carries most tokens."""

    rows: Mapping[int, tuple[int, ...]]
    common: tuple[int, int]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.rows)

    @property
    def most_rows(self) -> int:
        return max(counts[-1] for counts in self.rows.values())

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((count, length) for length, counts in self.rows.items() for count in counts)

    def length(self, tokens: int) -> int:
        """The shortest bucket that holds ``tokens``."""
        lengths = self.lengths
        if tokens > lengths[-1]:
            raise UsageError(
                f"{tokens} tokens",
                f"are more than the longest bucket, {lengths[-1]}",
                "cut the text, or export with a larger max_length",
            )
        return lengths[bisect_left(lengths, tokens)]

    def count(self, rows: int, length: int) -> int:
        """The least row count that holds ``rows``; all that run at ``length`` if none does."""
        counts = self.rows[length]
        return counts[min(bisect_left(counts, rows), len(counts) - 1)]


def choose(
    histogram: Mapping[int, int],
    max_length: int,
    budget: int,
    *,
    lengths: int = LENGTHS,
    rows: int = ROWS,
) -> Buckets:
    """Buckets for texts of these token lengths, in batches of at most ``budget`` padded tokens.

    ``histogram``: how many texts have each length; empty: lengths double up to ``max_length``.
    """
    for name, value in (("max_length", max_length), ("budget", budget), ("lengths", lengths)):
        if value < 1:
            raise UsageError(f"{name}={value}", "must be at least 1")
    if rows < 1:
        raise UsageError(f"rows={rows}", "must be at least 1")
    counts = _on_grid(histogram, max_length)
    ends = _cheapest(counts, max_length, lengths) if counts else _doubling(max_length, lengths)
    out: dict[int, tuple[int, ...]] = {}
    for shorter, length in zip((0, *ends), ends, strict=False):
        # A batch in this bucket may be of its shortest texts: so many rows fit the budget.
        out[length] = _ladder(max(1, min(rows, budget // (shorter + 1))))
    busiest = (
        max(ends, key=lambda end: _tokens(counts, ends, end)) if counts else ends[len(ends) // 2]
    )
    return Buckets(out, (out[busiest][-1], busiest))


def measured(checks: Mapping[str, Any], source: object = "bundle.json") -> dict[int, int]:
    """The histogram that export may have left in a manifest's ``checks``; empty if it did not."""
    found = checks.get("lengths", {})
    try:
        histogram = {int(length): int(count) for length, count in found["histogram"].items()}
        if any(length < 1 or count < 0 for length, count in histogram.items()):
            raise ValueError
    except KeyError:
        return {}
    except (AttributeError, TypeError, ValueError):
        raise BundleError(
            source, "its lengths are no histogram of token counts", "export the bundle again"
        ) from None
    return histogram


def _on_grid(histogram: Mapping[int, int], max_length: int) -> dict[int, int]:
    """The same texts at lengths that a bucket may have; longer ones are cut to ``max_length``."""
    out: dict[int, int] = {}
    for length, count in sorted(histogram.items()):
        if count > 0:
            end = min(max_length, -(-length // STEP) * STEP)
            out[end] = out.get(end, 0) + count
    return out


def _cheapest(counts: Mapping[int, int], max_length: int, most: int) -> tuple[int, ...]:
    """At most ``most`` ends, the last of them ``max_length``, with the fewest padded tokens."""
    ends = sorted({*counts, max_length})
    before = [0]
    for end in ends:
        before.append(before[-1] + counts.get(end, 0))
    # best[i]: the cost of all texts up to ends[i], and the ends used, the last being ends[i].
    best: list[tuple[int, tuple[int, ...]]] = [
        (end * before[i + 1], (end,)) for i, end in enumerate(ends)
    ]
    for _ in range(most - 1):
        longer = list(best)
        for i, end in enumerate(ends):
            for j in range(i):
                cost = best[j][0] + end * (before[i + 1] - before[j + 1])
                longer[i] = min(longer[i], (cost, (*best[j][1], end)))
        best = longer
    return best[-1][1]


def _doubling(max_length: int, most: int) -> tuple[int, ...]:
    out = [max_length]
    while len(out) < most and out[-1] > 2 * STEP:
        out.append(-(-out[-1] // (2 * STEP)) * STEP)
    return tuple(reversed(out))


def _ladder(most: int) -> tuple[int, ...]:
    """1, 2, 4, … and ``most``."""
    return (*(2**n for n in range(most.bit_length()) if 2**n < most), most)


def _tokens(counts: Mapping[int, int], ends: tuple[int, ...], end: int) -> int:
    shorter = max((other for other in ends if other < end), default=0)
    return end * sum(count for length, count in counts.items() if shorter < length <= end)
