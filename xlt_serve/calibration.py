"""From logits to probabilities that mean what they say: temperature, and measures of calibration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def softmax(logits: npt.ArrayLike, temperature: float = 1.0) -> Array:
    """[n, classes] logits → probabilities, divided by ``temperature`` first."""
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, was: {temperature}")
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    shifted = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def negative_log_likelihood(probabilities: Array, labels: npt.ArrayLike) -> float:
    chosen = probabilities[np.arange(len(probabilities)), np.asarray(labels)]
    return float(-np.log(np.maximum(chosen, 1e-300)).mean())


def probabilities(logits: npt.ArrayLike, temperature: float = 1.0) -> Array:
    """[n, classes] logits, or [n, streams, classes] whose distributions are averaged."""
    out = softmax(logits, temperature)
    return out.mean(axis=1) if out.ndim == 3 else out


def fit_temperature(logits: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """The temperature that minimises the negative log-likelihood, within [0.05, 20].

    A weak prior around 1, worth one observation, keeps a small set that the model gets all right
    from making it infinitely sure. A golden-section search on log-temperature finds the minimum.
    """
    values, truth = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    if len(values) == 0 or len(values) != len(truth):
        raise ValueError(f"one label for each row of logits, got {len(truth)} for {len(values)}")

    def loss(log_temperature: float) -> float:
        given = probabilities(values, float(np.exp(log_temperature)))
        return negative_log_likelihood(given, truth) + 0.5 * log_temperature**2 / len(truth)

    low, high = np.log(0.05), np.log(20.0)
    ratio = (np.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    left_loss, right_loss = loss(left), loss(right)
    while high - low > 1e-5:
        if left_loss <= right_loss:
            high, right, right_loss = right, left, left_loss
            left = high - ratio * (high - low)
            left_loss = loss(left)
        else:
            low, left, left_loss = left, right, right_loss
            right = low + ratio * (high - low)
            right_loss = loss(right)
    return float(np.exp((low + high) / 2))


def cross_validated(
    logits: npt.ArrayLike, labels: npt.ArrayLike, folds: int = 5, seed: int = 0
) -> Array:
    """Probabilities of each row under a temperature that was fitted on the other folds only."""
    values, truth = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    fold = np.random.default_rng(seed).permutation(len(truth)) % min(folds, len(truth))
    out = np.zeros((len(truth), values.shape[-1]))
    for number in range(fold.max() + 1):
        held = fold == number
        others = ~held if fold.max() > 0 else held
        out[held] = probabilities(values[held], fit_temperature(values[others], truth[others]))
    return out


def expected_calibration_error(
    probabilities: Array, labels: npt.ArrayLike, bins: int = 15
) -> float:
    """Mean gap between confidence and accuracy over equal-width bins, weighted by their size."""
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == np.asarray(labels)
    slot = np.minimum((confidence * bins).astype(int), bins - 1)
    gap = 0.0
    for number in range(bins):
        inside = slot == number
        if inside.any():
            gap += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    return float(gap)


def brier_score(probabilities: Array, labels: npt.ArrayLike) -> float:
    """Mean squared distance between the probabilities and the one-hot truth."""
    truth = np.eye(probabilities.shape[1])[np.asarray(labels)]
    return float(((probabilities - truth) ** 2).sum(axis=1).mean())


def bootstrap_interval(
    measure: Callable[[Array, npt.NDArray[np.int64]], float],
    probabilities: Array,
    labels: npt.ArrayLike,
    resamples: int = 500,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of ``measure`` over rows drawn with replacement."""
    truth = np.asarray(labels)
    generator = np.random.default_rng(seed)
    rows = generator.integers(len(truth), size=(resamples, len(truth)))
    values = [measure(probabilities[chosen], truth[chosen]) for chosen in rows]
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Answered:
    """What happens when only predictions at least as sure as ``threshold`` are given."""

    threshold: float
    coverage: float
    error: float


def answered(probabilities: Array, labels: npt.ArrayLike, threshold: float) -> Answered:
    confidence = probabilities.max(axis=1)
    kept = confidence >= threshold
    wrong = probabilities.argmax(axis=1) != np.asarray(labels)
    error = float(wrong[kept].mean()) if kept.any() else 0.0
    return Answered(threshold, float(kept.mean()), error)


def risk_coverage(probabilities: Array, labels: npt.ArrayLike, points: int = 10) -> list[Answered]:
    """The error among the surest tenth, two tenths … all of the predictions."""
    confidence = np.sort(probabilities.max(axis=1))[::-1]
    last = [max(1, round(len(confidence) * step / points)) - 1 for step in range(1, points + 1)]
    return [answered(probabilities, labels, float(confidence[index])) for index in last]


def threshold_for_error(probabilities: Array, labels: npt.ArrayLike, error: float) -> float | None:
    """The lowest threshold at which the share of wrong answers is at most ``error``; None if even the
    surest are wrong more often. It is a figure of these rows, not a bound for others."""
    for threshold in sorted(set(probabilities.max(axis=1))):
        if answered(probabilities, labels, float(threshold)).error <= error:
            return float(threshold)
    return None
