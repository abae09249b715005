"""Comparisons: beside scipy, and on simulated models whose difference is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from xlt_serve.errors import UsageError
from xlt_serve.evaluation.answers import Answers
from xlt_serve.evaluation.comparison import compared, gap, t_quantile, t_tails


def run(right: dict[str, np.ndarray]) -> dict[str, Answers]:
    return {
        language: Answers(
            labels=("a", "b"),
            ids=tuple(str(number) for number in range(len(mine))),
            truth=("a",) * len(mine),
            best=tuple("a" if good else "b" for good in mine),
            given=np.ones(len(mine), dtype=bool),
            shares=np.tile([0.6, 0.4], (len(mine), 1)),
        )
        for language, mine in right.items()
    }


@pytest.mark.parametrize("free", [1.0, 2.5, 9.0, 400.0])
def test_students_t_is_scipys(free: float) -> None:
    for t in (0.0, 0.3, 2.0, 7.0):
        assert t_tails(t, free) == pytest.approx(2 * stats.t.sf(t, free), abs=1e-9)
    assert t_quantile(0.975, free) == pytest.approx(stats.t.ppf(0.975, free), rel=1e-6)


def test_without_sentences_it_is_welchs_t() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.normal(0.7, 0.02, 6), generator.normal(0.72, 0.01, 8)
    still = np.zeros(100)
    found = gap(first.tolist(), second.tolist(), still, still)
    wanted = stats.ttest_ind(second, first, equal_var=False)
    assert found.p == pytest.approx(wanted.pvalue)
    low, high = wanted.confidence_interval()
    assert (found.low, found.high) == pytest.approx((low, high))


def test_below_five_runs_there_is_no_verdict() -> None:
    draws = np.random.default_rng(0).normal(0.7, 0.01, (2, 100))
    assert gap([0.7, 0.71, 0.72, 0.7], [0.9] * 5, *draws).p is None
    assert gap([0.7, 0.71, 0.72, 0.7, 0.71], [0.9] * 5, *draws).p is not None
    several = gap([0.7, 0.74, 0.72], [0.7, 0.74, 0.72], *draws)
    alone = gap([0.7, 0.74, 0.72], [0.72], *draws)  # a single run tells nothing of its spread
    assert alone.high - alone.low > several.high - several.low
    assert gap([0.7], [0.9], *draws).p is not None  # of two models, not of two methods


def test_models_that_differ_and_models_that_do_not() -> None:
    generator = np.random.default_rng(1)
    hard = generator.random(400)
    same = {"en": hard < 0.8, "de": hard < 0.7, "zh": hard < 0.6}
    better = {"en": hard < 0.8, "de": hard < 0.8, "zh": hard < 0.6}
    (found,) = compared({"A": [run(same)], "B": [run(better)]}, "en")
    assert (found.first, found.second, found.runs) == ("A", "B", (1, 1))
    assert found.gaps["de"].low > 0
    assert found.gaps["de"].p_holm is not None
    assert found.gaps["de"].p_holm < 0.01
    assert found.gaps["en"].p == 1.0
    assert found.gaps["target"].mean == pytest.approx(found.gaps["de"].mean / 2)
    assert set(found.gaps) == {"en", "de", "zh", "all", "target", "distant"}
    with pytest.raises(UsageError, match="B: was judged on other rows"):
        compared({"A": [run(same)], "B": [run({"en": hard[:10] < 0.5})]}, "en")


def test_intervals_over_runs_hold_the_truth_about_as_often_as_they_say() -> None:
    """Simulated: runs scatter by .02 on the same sentences, and the sentences are a sample too."""
    generator = np.random.default_rng(2)
    inside = 0
    for _ in range(40):
        hard = generator.random(200)
        runs = {
            name: [run({"en": hard < generator.normal(level, 0.02)}) for _ in range(5)]
            for name, level in (("A", 0.7), ("B", 0.75))
        }
        (found,) = compared(runs, "en")
        inside += found.gaps["en"].low <= 0.05 <= found.gaps["en"].high
    assert 34 <= inside <= 40
