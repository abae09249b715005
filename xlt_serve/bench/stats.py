"""Times to numbers: percentiles with their intervals, and whether two runs differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

PERCENTILES = (50, 90, 95, 99)
BLOCKS = 20
"""Neighbouring times resemble each other; tests therefore compare blocks of them, not single ones."""


def summary(milliseconds: Sequence[float]) -> dict[str, Any]:
    """Percentiles, each with a 95 % interval, and the medians and 95th percentiles of blocks in
    the order of time."""
    times = np.asarray(milliseconds, dtype=np.float64)
    if not len(times):
        return {"count": 0}
    ordered = np.sort(times)
    out: dict[str, Any] = {"count": len(times)}
    for percentile in PERCENTILES:
        out[f"p{percentile}"] = _rounded(np.percentile(ordered, percentile))
    out |= {"max": _rounded(ordered[-1]), "mean": _rounded(times.mean())}
    out["intervals"] = {
        f"p{percentile}": [_rounded(bound) for bound in interval(ordered, percentile / 100)]
        for percentile in PERCENTILES
    }
    parts = np.array_split(times, min(BLOCKS, len(times)))
    out["blocks"] = {
        "p50": [_rounded(np.median(part)) for part in parts],
        "p95": [_rounded(np.percentile(part, 95)) for part in parts],
    }
    return out


def interval(
    ordered: npt.NDArray[np.float64], share: float, level: float = 0.95
) -> tuple[float, float]:
    """Of a quantile, from order statistics: no assumption on how the times are distributed.

    The number of times below the true quantile is binomial; the bounds are the times at the ranks
    that it falls between with probability ``level``. Too few times for the tail: the bound is the
    smallest or largest, which is less than the level promises.
    """
    count = len(ordered)
    spread = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(count * share * (1 - share))
    low = max(0, math.floor(count * share - spread) - 1)
    high = min(count - 1, math.ceil(count * share + spread))
    return float(ordered[low]), float(ordered[high])


def is_stable(milliseconds: Sequence[float], share: float = 0.99, within: float = 0.1) -> bool:
    """Whether the interval of a percentile is narrow, and the tail has times beyond it."""
    count = len(milliseconds)
    if count * (1 - share) < 10:
        return False
    ordered = np.sort(np.asarray(milliseconds, dtype=np.float64))
    low, high = interval(ordered, share)
    return high - low <= 2 * within * float(np.quantile(ordered, share))


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of the second run to the first: above 1 is slower. ``p``: that the second is not slower than
    ``limit`` times the first, one-sided; ``p_differ``: that there is no difference, two-sided."""

    ratio: float
    low: float
    high: float
    p: float
    p_differ: float


def ratio(
    first: Sequence[float],
    second: Sequence[float],
    limit: float = 1.0,
    times: int = 4000,
    seed: int = 0,
) -> Ratio:
    """Of the geometric means of blocks: a bootstrap interval and permutation tests."""
    a, b = np.log(np.asarray(first)), np.log(np.asarray(second))
    generator = np.random.default_rng(seed)
    seen = float(b.mean() - a.mean())
    draws = generator.choice(b, (times, len(b))).mean(1) - generator.choice(
        a, (times, len(a))
    ).mean(1)
    low, high = np.exp(np.percentile(draws, [2.5, 97.5]))
    return Ratio(
        math.exp(seen),
        float(low),
        float(high),
        _permuted(a, b - math.log(limit), generator, times, two_sided=False),
        _permuted(a, b, generator, times, two_sided=True),
    )


def _permuted(
    a: npt.NDArray[np.float64],
    b: npt.NDArray[np.float64],
    generator: np.random.Generator,
    times: int,
    two_sided: bool,
) -> float:
    """How often a random split of all blocks has the second as much above the first as seen."""
    both = np.concatenate([a, b])
    seen = b.mean() - a.mean()
    shuffled = generator.permuted(np.tile(both, (times, 1)), axis=1)
    gaps = shuffled[:, len(a) :].mean(1) - shuffled[:, : len(a)].mean(1)
    tolerance = 1e-12
    hits = (np.abs(gaps) >= abs(seen) - tolerance) if two_sided else (gaps >= seen - tolerance)
    return float((1 + hits.sum()) / (1 + times))


def more_often(first: tuple[int, int], second: tuple[int, int], limit: float = 1.0) -> float:
    """Of (hits, trials): p that the second's share of hits is not more than ``limit`` times the
    first's, one-sided, by the normal approximation with the pooled share."""
    (a, before), (b, after) = first, second
    pooled = (a + b) / (before + after)
    spread = math.sqrt(pooled * (1 - pooled) * (1 / before + 1 / after))
    if not spread:
        return 1.0
    return 1 - NormalDist().cdf((b / after - limit * a / before) / spread)


def _rounded(value: Any) -> float:
    return round(float(value), 4)
