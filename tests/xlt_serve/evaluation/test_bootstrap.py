from __future__ import annotations

import numpy as np
import pytest

from xlt_serve.evaluation.bootstrap import difference, holm, resample, shown, weighted_accuracy


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5]) == [0.5]
    assert max(holm([0.9, 0.8])) <= 1


def test_resampling_keeps_the_size_of_each_group() -> None:
    weights = resample(list("abcdef"), ["x", "x", "y", "y", "y", "y"], 500, seed=0)
    assert (weights[:, :2].sum(axis=1) == 2).all()
    assert (weights[:, 2:].sum(axis=1) == 4).all()
    np.testing.assert_allclose(weights.mean(axis=0), 1, atol=0.15)


def test_resampling_is_cut_into_parts_and_fits_into_memory() -> None:
    weights = resample([str(i) for i in range(7)], ["x"] * 7, 2500, seed=3)
    assert weights.dtype == np.float32
    assert (weights.sum(axis=1) == 7).all()
    whole = np.random.default_rng(3).multinomial(7, [1 / 7] * 7, size=2500)
    np.testing.assert_array_equal(weights, whole)


def test_p_is_never_zero_and_at_most_one() -> None:
    for draws in (9, 999):
        sure, never = np.ones(draws), np.zeros(draws)
        assert difference(sure, never, 1.0).p == pytest.approx(2 / (draws + 1))
        assert difference(never, sure, -1.0).p == pytest.approx(2 / (draws + 1))
        assert difference(sure, sure, 0.0).p == 1.0


def test_systems_that_are_right_equally_often_tie_exactly() -> None:
    """Thirds are not exact: sums in another order would make a tie into a difference."""
    generator = np.random.default_rng(0)
    weights = resample([str(i) for i in range(90)], ["x"] * 90, 300, seed=0)
    first = (generator.random((3, 90)) < 0.5).astype(float)
    tied = weighted_accuracy(first, weights) - weighted_accuracy(first[[2, 0, 1]], weights)
    assert (tied == 0).all()


def test_the_deviation_is_a_samples_and_one_seed_has_none() -> None:
    assert shown([0.5, 0.6]) == "55.0 ± 7.1"
    assert shown([0.5]) == "50.0"


def test_missing_sentences_do_not_count() -> None:
    correct = np.array([[1.0, np.nan, 0.0], [1.0, np.nan, 1.0]])
    assert weighted_accuracy(correct, np.ones((1, 3)))[0] == pytest.approx(0.75)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """A simulation with a known difference: two systems, correlated by sentence."""
    generator = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        ids = [str(i) for i in range(150)]
        hard = generator.normal(size=150)
        first = (hard + generator.normal(size=(3, 150)) * 0.5 < 0.3).astype(float)
        second = (hard + generator.normal(size=(3, 150)) * 0.5 < 0.0).astype(float)
        weights = resample(ids, ["x"] * 150, 400, seed=trial)
        made = difference(weighted_accuracy(first, weights), weighted_accuracy(second, weights), 0)
        # P(N(0, 1.25) < 0.3) − P(N(0, 1.25) < 0) = Φ(0.3/√1.25) − ½
        covered += made.low <= 0.10578 <= made.high
    assert 0.88 <= covered / 200 <= 0.99


def test_no_difference_is_seldom_significant() -> None:
    generator = np.random.default_rng(1)
    found = 0
    for trial in range(200):
        a, b = (
            (generator.random((3, 100)) < 0.6).astype(float),
            (generator.random((3, 100)) < 0.6).astype(float),
        )
        weights = resample([str(i) for i in range(100)], ["x"] * 100, 400, seed=trial)
        found += (
            difference(weighted_accuracy(a, weights), weighted_accuracy(b, weights), 0).p < 0.05
        )
    assert found / 200 < 0.1
