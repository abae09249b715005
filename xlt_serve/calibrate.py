"""From logits to probabilities that mean what they say: temperature, and measures of calibration."""

from __future__ import annotations

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


def fit_temperature(logits: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """The temperature that minimises the negative log-likelihood, within [0.05, 20].

    A weak prior around 1, worth one observation, keeps a small set that the model gets all right
    from making it infinitely sure. A golden-section search on log-temperature finds the minimum.
    """
    values, truth = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    if len(values) == 0 or len(values) != len(truth):
        raise ValueError(f"one label for each row of logits, got {len(truth)} for {len(values)}")

    def loss(log_temperature: float) -> float:
        likelihood = negative_log_likelihood(softmax(values, float(np.exp(log_temperature))), truth)
        return likelihood + 0.5 * log_temperature**2 / len(truth)

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
