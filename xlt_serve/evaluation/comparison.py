"""Is one model better than another, on the same rows?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xlt_serve.errors import UsageError
from xlt_serve.evaluation.answers import Answers
from xlt_serve.evaluation.bootstrap import Bootstrap, bootstrap, difference, holm
from xlt_serve.evaluation.groups import DISTANT, groups
from xlt_serve.smoothing.certify import beta_cdf

ENOUGH = 5
"""Runs of each system from which on a verdict is given."""
CELLS = 50_000_000
"""Draws × sentences that are held at a time."""

Run = Mapping[str, Answers]
"""By language."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The second system's accuracy less the first's, with a 95 % interval. ``p``: that there is no
    difference, two-sided; None where there are too few runs to say. ``p_holm``: over languages."""

    mean: float
    low: float
    high: float
    p: float | None
    p_holm: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """By language, and by group of them. ``scores``: mean accuracy of each system."""

    first: str
    second: str
    runs: tuple[int, int]
    scores: dict[str, tuple[float, float]]
    gaps: dict[str, Gap]


def drawn(
    systems: Mapping[str, Sequence[Run]], source: str, distant: Collection[str] = DISTANT
) -> Bootstrap:
    """Accuracies of all systems under the same draws of sentences."""
    some = next(iter(systems.values()))[0]
    for name, runs in systems.items():
        if any(
            {lg: each[lg].ids for lg in each} != {lg: some[lg].ids for lg in some} for each in runs
        ):
            raise UsageError(name, "was judged on other rows", "judge all on the same file")
    languages: dict[str, list[str]] = defaultdict(list)
    for language, found in some.items():
        for each in found.ids:
            languages[each].append(language)
    # Sentences of the same languages are drawn among each other, so that no language goes without.
    sentences = {
        language: [(" ".join(languages[each]), each) for each in found.ids]
        for language, found in some.items()
    }
    correct = {
        name: [{lg: found.right.tolist() for lg, found in run.items()} for run in runs]
        for name, runs in systems.items()
    }
    count = len({each for mine in sentences.values() for each in mine})
    times = max(500, min(10_000, CELLS // count))
    return bootstrap(correct, sentences, groups(list(some), source, distant), times)


def compared(
    systems: Mapping[str, Sequence[Run]], source: str, distant: Collection[str] = DISTANT
) -> list[Comparison]:
    """Each system beside the first."""
    found = drawn(systems, source, distant)
    first, *others = systems
    return [_pair(found, first, other) for other in others]


def _pair(found: Bootstrap, first: str, second: str) -> Comparison:
    gaps: dict[str, Gap] = {}
    for column in found.scores[first]:
        gaps[column] = gap(
            found.scores[first][column],
            found.scores[second][column],
            found.draws[first][column],
            found.draws[second][column],
        )
    known = [language for language in found.languages if gaps[language].p is not None]
    adjusted = holm([gaps[language].p or 0.0 for language in known])
    for language, p in zip(known, adjusted, strict=True):
        old = gaps[language]
        gaps[language] = Gap(old.mean, old.low, old.high, old.p, p)
    scores = {
        column: (
            float(np.mean(found.scores[first][column])),
            float(np.mean(found.scores[second][column])),
        )
        for column in gaps
    }
    column = found.languages[0]
    runs = (len(found.scores[first][column]), len(found.scores[second][column]))
    return Comparison(first, second, runs, scores, gaps)


def gap(
    first: Sequence[float],
    second: Sequence[float],
    first_draws: np.ndarray,
    second_draws: np.ndarray,
) -> Gap:
    """Of accuracies of single runs on all rows, and of their mean under each draw of the rows.

    One run each: a paired bootstrap over sentences, which says something of these two models. Several:
    Welch's t over the runs, with the variance that comes from the sentences added, which says something of the methods.
    """
    mean = float(np.mean(second) - np.mean(first))
    if len(first) == len(second) == 1:
        paired = difference(second_draws, first_draws, mean)
        return Gap(mean, paired.low, paired.high, paired.p)
    spreads = [float(np.var(runs, ddof=1)) for runs in (first, second) if len(runs) > 1]
    degrees = [max(1, len(runs) - 1) for runs in (first, second)]
    if len(spreads) == 1:  # of a system with one run nobody knows the spread: the other's stands in
        spreads, degrees = spreads * 2, [max(degrees)] * 2
    parts = [spread / len(runs) for spread, runs in zip(spreads, (first, second), strict=True)]
    sentences = float(np.var(second_draws - first_draws, ddof=1))
    variance = sum(parts) + sentences
    enough = min(len(first), len(second)) >= ENOUGH
    if variance == 0:
        return Gap(mean, mean, mean, float(mean == 0) if enough else None)
    # Welch and Satterthwaite; the sentences are so many that their part counts as known.
    spent = sum(part**2 / free for part, free in zip(parts, degrees, strict=True))
    free = variance**2 / spent if spent else math.inf
    width = t_quantile(0.975, free) * math.sqrt(variance)
    p = t_tails(mean / math.sqrt(variance), free) if enough else None
    return Gap(mean, mean - width, mean + width, p)


def t_tails(t: float, free: float) -> float:
    """P(|T| ≥ |t|) of Student's t."""
    free = min(free, 1e6)
    return beta_cdf(free / (free + t * t), free / 2, 0.5)


def t_quantile(level: float, free: float) -> float:
    low, high = 0.0, 1e3
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tails(middle, free) > 2 * (1 - level) else (low, middle)
    return high
