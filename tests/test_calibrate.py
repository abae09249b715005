from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.calibrate import (
    brier_score,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    softmax,
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
