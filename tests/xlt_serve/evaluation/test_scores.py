"""Scores by their definitions, and intervals beside what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlt_serve.evaluation.answers import Answers, answers
from xlt_serve.evaluation.scores import score
from xlt_serve.files.labelled import Labelled
from xlt_serve.types import Failure, Prediction, Votes

LABELS = ("a", "b", "c")
rows = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abc")), min_size=1, max_size=40)


def of(pairs: list[tuple[str, str]], given: list[bool] | None = None) -> Answers:
    shares = np.array([[0.9 if label == best else 0.05 for label in LABELS] for _, best in pairs])
    return Answers(
        labels=LABELS,
        ids=tuple(str(number) for number in range(len(pairs))),
        truth=tuple(truth for truth, _ in pairs),
        best=tuple(best for _, best in pairs),
        given=np.array(given or [True] * len(pairs)),
        shares=shares,
    )


@settings(max_examples=40, deadline=None)
@given(rows)
def test_scores_are_what_their_definitions_say(pairs: list[tuple[str, str]]) -> None:
    """Counted row by row."""
    found = score(of(pairs))
    assert found.accuracy.value == pytest.approx(sum(t == b for t, b in pairs) / len(pairs))
    there = {label for pair in pairs for label in pair}
    f1 = {}
    for row, label in enumerate(found.labels):
        hits = sum(t == b == label for t, b in pairs)
        given_, true = sum(b == label for _, b in pairs), sum(t == label for t, _ in pairs)
        precision, recall = hits / given_ if given_ else 0.0, hits / true if true else 0.0
        f1[label] = 2 * precision * recall / (precision + recall) if hits else 0.0
        mine = found.by_label[label]
        wanted = (precision, recall, f1[label], true)
        assert (mine.precision, mine.recall, mine.f1, mine.support) == pytest.approx(wanted)
        for column, other in enumerate(found.labels):
            assert found.confusion[row][column] == sum(p == (label, other) for p in pairs)
    mean = sum(f1[label] for label in there) / len(there)
    assert found.macro_f1.value == pytest.approx(mean)


def test_few_rows_that_are_all_right_prove_little() -> None:
    found = score(of([("a", "a")] * 24)).accuracy
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.862, abs=0.001)  # Wilson (1927)


def test_abstentions_are_no_errors_and_are_told() -> None:
    pairs = [("a", "a"), ("a", "b"), ("b", "b"), ("c", "a")]
    found = score(of(pairs, [True, False, True, True]))
    assert found.accuracy.value == 0.5
    assert found.coverage == 0.75
    assert found.error == pytest.approx(1 / 3)
    assert score(of(pairs, [False] * 4)).error is None


def test_failed_rows_are_wrong_and_told() -> None:
    labelled = [Labelled("x", label, "en", id=str(n)) for n, label in enumerate("aab")]
    votes = Votes({"a": 30, "b": 10, "c": 0}, 40, 1, 0.6, None)
    predictions = [
        Prediction("a", {"a": 0.8, "b": 0.1, "c": 0.1}),
        Prediction(None, smoothed=votes, abstained="votes"),
        Prediction(None, error=Failure("empty", "is empty")),
    ]
    found = answers(LABELS, labelled, predictions)
    assert found.best == ("a", "a", None)
    assert found.given.tolist() == [True, False, False]
    assert found.shares[1].tolist() == [0.75, 0.25, 0.0]
    scored = score(found)
    assert (scored.failed, scored.rows) == (1, 3)
    assert scored.accuracy.value == pytest.approx(2 / 3)
    assert scored.by_label["b"].recall == 0.0
    assert sum(map(sum, scored.confusion)) == 2


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Simulated: accuracy .7 on 120 rows, 60 times."""
    generator = np.random.default_rng(0)
    inside = 0
    for seed in range(60):
        right = generator.random(120) < 0.7
        found = score(of([("a", "a" if good else "b") for good in right]), seed).accuracy
        inside += found.low <= 0.7 <= found.high
    assert 52 <= inside <= 60
