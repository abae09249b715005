"""Scores of one language, with intervals over its rows."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from xlt_serve import calibration
from xlt_serve.evaluation.answers import Answers

Matrix: TypeAlias = npt.NDArray[np.int64]
RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """A score and its 95 % interval over rows."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class LabelScore:
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, slots=True)
class Score:
    """``accuracy`` and ``macro_f1`` are those of the best labels of all rows, also where the classifier
    abstained; ``coverage`` is the share of rows that it answered, ``error`` how many of those answers
    are wrong (None: it answered none). ``confusion``: true labels by given ones, in the order of ``labels``; rows that
    failed are in no column. Of ``labels`` the model has the first ``known``; others are in the rows alone.
    ``majority``: what the commonest label gets."""

    rows: int
    failed: int
    majority: float
    accuracy: Interval
    macro_f1: Interval
    coverage: float
    error: float | None
    calibration_error: float
    log_loss: float
    labels: tuple[str, ...]
    known: int
    by_label: dict[str, LabelScore]
    confusion: list[list[int]]


def score(found: Answers, seed: int = 0) -> Score:
    labels = (*found.labels, *sorted({*found.truth} - {*found.labels}))
    place = {label: number for number, label in enumerate(labels)}
    truth = np.array([place[label] for label in found.truth])
    best = np.array([len(labels) if label is None else place[label] for label in found.best])
    matrix = confusion(truth, best, len(labels))
    wrong = ~found.right[found.given]
    return Score(
        rows=len(found),
        failed=found.failed,
        majority=max(Counter(found.truth).values()) / len(found),
        accuracy=wilson(int(found.right.sum()), len(found)),
        macro_f1=_interval(macro_f1(matrix), resampled(truth, best, len(labels), seed)),
        coverage=float(found.given.mean()),
        error=float(wrong.mean()) if len(wrong) else None,
        **_calibration(found),
        labels=labels,
        known=len(found.labels),
        by_label=by_label(matrix, labels),
        confusion=matrix[:, :-1].tolist(),
    )


def confusion(truth: npt.NDArray[np.int64], best: npt.NDArray[np.int64], labels: int) -> Matrix:
    """[labels, labels + 1]: how often each label was taken for each other; the last column has the rows
    that failed."""
    flat = np.bincount(truth * (labels + 1) + best, minlength=labels * (labels + 1))
    return np.asarray(flat.reshape(labels, labels + 1), dtype=np.int64)


def wilson(right: int, rows: int) -> Interval:
    """Wilson's interval, which is sound for few rows and where all are right."""
    share, z = right / rows, NormalDist().inv_cdf(0.975)
    middle = (share + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z / (1 + z * z / rows) * math.sqrt(share * (1 - share) / rows + (z / (2 * rows)) ** 2)
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def f1_of(matrix: Matrix) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """F1 of each label, and which labels occur at all, as true ones or as given ones."""
    hits = np.diagonal(matrix).astype(float)
    given, true = matrix[:, :-1].sum(axis=0), matrix.sum(axis=1)
    both = given + true
    return np.divide(2 * hits, both, out=np.zeros_like(hits), where=both > 0), both > 0


def macro_f1(matrix: Matrix) -> float:
    """The mean over the labels that occur."""
    f1, there = f1_of(matrix)
    return float(f1[there].mean()) if there.any() else 0.0


def by_label(matrix: Matrix, labels: tuple[str, ...]) -> dict[str, LabelScore]:
    hits, (f1, _) = np.diagonal(matrix), f1_of(matrix)
    given, true = matrix[:, :-1].sum(axis=0), matrix.sum(axis=1)
    return {
        label: LabelScore(
            precision=float(hits[n] / given[n]) if given[n] else 0.0,
            recall=float(hits[n] / true[n]) if true[n] else 0.0,
            f1=float(f1[n]),
            support=int(true[n]),
        )
        for n, label in enumerate(labels)
    }


def resampled(
    truth: npt.NDArray[np.int64], best: npt.NDArray[np.int64], labels: int, seed: int
) -> list[float]:
    """Macro-F1 of rows drawn with replacement, many times."""
    generator = np.random.default_rng(seed)
    rows = (generator.integers(len(truth), size=len(truth)) for _ in range(RESAMPLES))
    return [macro_f1(confusion(truth[drawn], best[drawn], labels)) for drawn in rows]


def _interval(value: float, drawn: list[float]) -> Interval:
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Interval(value, float(low), float(high))


def _calibration(found: Answers) -> dict[str, float]:
    """Over the rows that did not fail and whose label the classifier knows."""
    place = {label: number for number, label in enumerate(found.labels)}
    rows = [
        n
        for n, (truth, best) in enumerate(zip(found.truth, found.best, strict=True))
        if best is not None and truth in place
    ]
    if not rows:
        return {"calibration_error": 0.0, "log_loss": 0.0}
    shares, truth = found.shares[rows], [place[found.truth[n]] for n in rows]
    return {
        "calibration_error": calibration.expected_calibration_error(shares, truth),
        "log_loss": calibration.negative_log_likelihood(np.maximum(shares, 1e-6), truth),
    }
