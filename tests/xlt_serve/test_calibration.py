from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.calibration import (
    answered,
    bootstrap_interval,
    brier_score,
    cross_validated,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    probabilities,
    risk_coverage,
    softmax,
    threshold_for_error,
)

LOGITS = st.lists(
    st.lists(st.floats(-30, 30), min_size=3, max_size=3), min_size=1, max_size=20
).map(np.array)


@given(LOGITS, st.floats(0.1, 10))
def test_softmax_is_a_distribution_that_keeps_the_order(logits: np.ndarray, t: float) -> None:
    p = softmax(logits, t)
    assert np.allclose(p.sum(axis=1), 1)
    assert (np.take_along_axis(p, logits.argmax(1)[:, None], 1)[:, 0] == p.max(axis=1)).all()


def test_temperature_recovers_the_one_that_spoilt_the_logits() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(20_000, 4)) * 2
    labels = np.array([generator.choice(4, p=row) for row in softmax(logits)])
    for spoilt in (0.4, 1.0, 3.0):
        assert fit_temperature(logits * spoilt, labels) == pytest.approx(spoilt, rel=0.03)


def test_temperature_matches_a_brute_force_search() -> None:
    generator = np.random.default_rng(1)
    logits, labels = generator.normal(size=(50, 3)) * 3, generator.integers(3, size=50)
    grid = np.exp(np.linspace(np.log(0.05), np.log(20), 4001))
    losses = [
        negative_log_likelihood(softmax(logits, t), labels) + 0.5 * np.log(t) ** 2 / 50
        for t in grid
    ]
    assert fit_temperature(logits, labels) == pytest.approx(grid[np.argmin(losses)], rel=0.01)


def test_a_set_without_a_mistake_does_not_make_it_infinitely_sure() -> None:
    logits = np.eye(3)[[0, 1, 2] * 10] * 4.0
    temperature = fit_temperature(logits, [0, 1, 2] * 10)
    assert 0.3 < temperature < 1
    assert softmax(logits, temperature).max() < 1


def test_calibration_error_of_known_cases() -> None:
    sure = np.array([[1.0, 0.0]] * 10)
    assert expected_calibration_error(sure, [0] * 10) == pytest.approx(0)
    assert expected_calibration_error(sure, [1] * 10) == pytest.approx(1)
    assert expected_calibration_error(sure, [0] * 7 + [1] * 3) == pytest.approx(0.3)
    assert brier_score(sure, [1] * 10) == pytest.approx(2)


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="must be positive, was: 0"):
        softmax([[1.0, 2.0]], 0)
    with pytest.raises(ValueError, match="got 1 for 2"):
        fit_temperature([[1.0, 2.0], [2.0, 1.0]], [0])


def test_streams_are_averaged() -> None:
    logits = np.array([[[2.0, 0.0], [0.0, 0.0]]])
    expected = (softmax([[2.0, 0.0]]) + 0.5) / 2
    np.testing.assert_allclose(probabilities(logits), expected)
    assert fit_temperature(np.repeat(logits, 50, axis=0), [0] * 50) < 1


def test_cross_validation_does_not_see_its_own_fold() -> None:
    """One wild row pulls the temperature of every other row, but never its own."""
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=60)
    logits = generator.normal(size=(60, 3)) + 3 * np.eye(3)[labels]
    calm = cross_validated(logits, labels, folds=60)
    wild = logits.copy()
    wild[7] *= 50
    again = cross_validated(wild, labels, folds=60)
    own = fit_temperature(np.delete(logits, 7, axis=0), np.delete(labels, 7))
    np.testing.assert_allclose(again[7], softmax(wild[7], own))
    assert np.abs(again[8] - calm[8]).max() > 0 or wild[7].argmax() == labels[7]


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """The Brier score of a known distribution, 200 samples of 120 rows."""
    generator = np.random.default_rng(0)
    row = np.array([0.7, 0.2, 0.1])
    truth = sum(p * ((row - np.eye(3)[c]) ** 2).sum() for c, p in enumerate(row))
    inside = 0
    for seed in range(200):
        labels = generator.choice(3, p=row, size=120)
        low, high = bootstrap_interval(
            brier_score, np.tile(row, (120, 1)), labels, resamples=200, seed=seed
        )
        inside += low <= truth <= high
    assert 0.88 <= inside / 200 <= 0.99


def test_a_threshold_gives_the_error_asked_for() -> None:
    confidence = np.array([0.95, 0.9, 0.8, 0.7, 0.6])
    given_probabilities = np.stack([confidence, 1 - confidence], axis=1)
    labels = [0, 0, 1, 0, 1]  # wrong at .8 and at .6
    assert threshold_for_error(given_probabilities, labels, 0.0) == 0.9
    assert threshold_for_error(given_probabilities, labels, 0.25) == 0.7
    assert threshold_for_error(given_probabilities, labels, 1.0) == 0.6
    assert threshold_for_error(given_probabilities[2:3], [1], 0.5) is None
    curve = risk_coverage(given_probabilities, labels, points=5)
    assert [point.error for point in curve] == pytest.approx([0, 0, 1 / 3, 1 / 4, 2 / 5])
    assert [point.coverage for point in curve] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert answered(given_probabilities, labels, 2.0).coverage == 0
