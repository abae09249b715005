"""How many answers are right where nobody has labelled any: estimates, and how far off they are.

Each method reads what a classifier said of texts without labels, and what it said of languages whose
labels are known. How far off a method is can be measured there alone: each known language is estimated
as if it had no labels, from the others.

- ``confidence``: the mean probability of the given labels.
- ``confidence+``: that, and the mean difference between accuracy and confidence in the known languages
  (difference of confidences: Guillory et al. 2021).
- ``threshold``: the share of texts that are surer than a threshold, above which lie as many of the known
  texts as were right (average thresholded confidence: Garg et al. 2022). Known languages count the same.
- ``agreement``: how often the answers to a text and to its translation are the same.
- ``agreement+``: that, and the mean difference between accuracy and agreement.

``mean``, the mean accuracy of the known languages, looks at none of the texts. It is no method, but what
one has to be better than.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

ENOUGH = 2
"""Known languages from which on an error can be measured."""


@dataclass(frozen=True)
class Evidence:
    """``confidence``: of the label of each text, 0 where it failed. ``agreement``: None where there are no
    translations."""

    confidence: Array
    agreement: float | None = None


@dataclass(frozen=True)
class Known(Evidence):
    """A language whose labels are known."""

    accuracy: float = 0.0


Method: TypeAlias = Callable[[Evidence, Sequence[Known]], float | None]
"""None: it can't say."""


def threshold(known: Sequence[Known]) -> float:
    """The share of known texts at or above it is as close as can be to their accuracy; each language
    counts the same."""
    values = np.concatenate([each.confidence for each in known])
    weights = np.concatenate([np.full(len(e.confidence), 1 / len(e.confidence)) for e in known])
    order = np.argsort(-values, kind="stable")
    values, above = values[order], np.cumsum(weights[order]) / len(known)
    last = np.append(values[1:] < values[:-1], True)  # equal ones lie on the same side
    values, above = np.append(np.inf, values[last]), np.append(0.0, above[last])
    cut = int(np.abs(above - np.mean([each.accuracy for each in known])).argmin())
    # In the middle of the gap; where all are above it, a less sure text would be below.
    if 0 < cut < len(values) - 1:
        return float((values[cut] + values[cut + 1]) / 2)
    return float(values[cut])


def by_confidence(found: Evidence, known: Sequence[Known]) -> float | None:
    return float(found.confidence.mean())


def by_shifted_confidence(found: Evidence, known: Sequence[Known]) -> float | None:
    if not known:
        return None
    shift = np.mean([each.accuracy - each.confidence.mean() for each in known])
    return _share(float(found.confidence.mean() + shift))


def by_threshold(found: Evidence, known: Sequence[Known]) -> float | None:
    return float((found.confidence >= threshold(known)).mean()) if known else None


def by_agreement(found: Evidence, known: Sequence[Known]) -> float | None:
    return found.agreement


def by_shifted_agreement(found: Evidence, known: Sequence[Known]) -> float | None:
    shifts = [each.accuracy - each.agreement for each in known if each.agreement is not None]
    if found.agreement is None or not shifts:
        return None
    return _share(found.agreement + float(np.mean(shifts)))


METHODS: dict[str, Method] = {
    "threshold": by_threshold,
    "confidence+": by_shifted_confidence,
    "confidence": by_confidence,
    "agreement+": by_shifted_agreement,
    "agreement": by_agreement,
}
"""In the order in which they are taken where nothing is known of their errors."""


BASELINE = "mean"


def by_mean(found: Evidence, known: Sequence[Known]) -> float | None:
    return float(np.mean([each.accuracy for each in known])) if known else None


@dataclass(frozen=True, slots=True)
class MethodError:
    """Of estimates of known languages, each made from the others: the mean distance to the accuracy,
    ``bias`` with its sign, and the ``worst`` of them."""

    mean: float
    bias: float
    worst: float
    worst_language: str
    languages: int


def estimate(
    method: str, language: str, found: Evidence, known: Mapping[str, Known]
) -> float | None:
    """Of a language, from the others."""
    others = [each for name, each in known.items() if name != language]
    return {**METHODS, BASELINE: by_mean}[method](found, others)


def error(method: str, known: Mapping[str, Known]) -> MethodError | None:
    """None where fewer than two languages can tell."""
    gaps = {}
    for language, each in known.items():
        found = estimate(method, language, each, known)
        if found is not None:
            gaps[language] = found - each.accuracy
    if len(gaps) < ENOUGH:
        return None
    worst = max(gaps, key=lambda language: abs(gaps[language]))
    values = np.array(list(gaps.values()))
    return MethodError(
        mean=float(np.abs(values).mean()),
        bias=float(values.mean()),
        worst=float(abs(gaps[worst])),
        worst_language=worst,
        languages=len(gaps),
    )


def errors(known: Mapping[str, Known]) -> dict[str, MethodError | None]:
    return {method: error(method, known) for method in (*METHODS, BASELINE)}


def ranked(found: Mapping[str, MethodError | None]) -> list[str]:
    """The methods, that with the least error first; those whose error is not known last."""
    measured = {m: each.mean for m in METHODS if (each := found.get(m)) is not None}
    best = sorted(measured, key=lambda method: measured[method])
    return [*best, *(method for method in METHODS if method not in measured)]


def chance(known: Mapping[str, Known]) -> float:
    """How far the accuracy of so few rows lies from that of all, on average: no method can show less."""
    spreads = [k.accuracy * (1 - k.accuracy) / len(k.confidence) for k in known.values()]
    return float(np.mean([math.sqrt(2 / math.pi * spread) for spread in spreads]))


def _share(value: float) -> float:
    return float(min(1.0, max(0.0, value)))
