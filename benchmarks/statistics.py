"""Is a difference real? Paired bootstrap over sentences, and Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Difference:
    """A mean difference, its 95 % interval and its two-sided bootstrap p-value."""

    mean: float
    low: float
    high: float
    p: float


def resample(ids: Sequence[str], groups: Sequence[str], times: int, seed: int) -> np.ndarray:
    """[times, ids] how often each sentence is drawn; each group keeps its size."""
    generator = np.random.default_rng(seed)
    out = np.zeros((times, len(ids)))
    for group in sorted(set(groups)):
        members = np.flatnonzero(np.array(groups) == group)
        even = np.full(len(members), 1 / len(members))
        out[:, members] = generator.multinomial(len(members), even, size=times)
    return out


def weighted_accuracy(correct: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[times] accuracy of [seeds, ids] (nan: the language lacks the sentence) under each draw."""
    there = ~np.isnan(correct[0])
    values = np.nanmean(correct[:, there], axis=0)
    chosen = weights[:, there]
    return np.asarray(chosen @ values / chosen.sum(axis=1))


def difference(first: np.ndarray, second: np.ndarray, observed: float) -> Difference:
    """Of two bootstrap distributions on the same draws."""
    gap = first - second
    below, above = (gap <= 0).mean(), (gap >= 0).mean()
    low, high = np.percentile(gap, [2.5, 97.5])
    return Difference(observed, float(low), float(high), float(min(1.0, 2 * min(below, above))))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given."""
    order = np.argsort(p_values)
    out, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        out[index] = highest
    return out
