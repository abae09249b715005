"""Estimates beside simulated truth, and the threshold beside brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlt_serve.evaluation import estimates
from xlt_serve.evaluation.estimates import METHODS, Evidence, Known, error, estimate, ranked


def calibrated(generator: np.random.Generator, rows: int, hardness: float) -> Known:
    """Texts of which as many are right as the classifier says: its confidence is true."""
    confidence = 0.5 + 0.5 * generator.beta(4 - 3 * hardness, 1 + 3 * hardness, rows)
    right = generator.random(rows) < confidence
    return Known(confidence, accuracy=float(right.mean()))


def languages(rows: int, twist: float = 1.0) -> dict[str, Known]:
    """Five, from easy to hard. ``twist``: above 1, the classifier is too sure of itself in all of them."""
    generator = np.random.default_rng(0)
    made = {f"l{n}": calibrated(generator, rows, n / 4) for n in range(5)}
    return {
        name: Known(1 - (1 - k.confidence) / twist, accuracy=k.accuracy) for name, k in made.items()
    }


def test_calibrated_confidence_is_accuracy() -> None:
    """Each language's truth within three standard errors of its rows, whatever the others' are."""
    known = languages(4000)
    for name, each in known.items():
        found = estimate("confidence", name, each, known)
        assert found == pytest.approx(each.accuracy, abs=3 * np.sqrt(0.25 / 4000))
    assert {round(each.accuracy, 1) for each in known.values()} >= {0.9, 0.6}  # they differ


def test_the_threshold_recovers_the_accuracy_of_a_language_like_the_known_ones() -> None:
    """Also where the classifier is far too sure of itself, and confidence says nothing by itself."""
    generator = np.random.default_rng(1)
    for twist in (1.0, 5.0):
        hidden, seen = (
            Known(1 - (1 - k.confidence) / twist, accuracy=k.accuracy)
            for k in (calibrated(generator, 20_000, 0.5) for _ in range(2))
        )
        found = estimates.by_threshold(Evidence(hidden.confidence), [seen])
        assert found == pytest.approx(hidden.accuracy, abs=0.012)
        shifted = estimates.by_shifted_confidence(Evidence(hidden.confidence), [seen])
        assert shifted == pytest.approx(hidden.accuracy, abs=0.012)
    raw = estimates.by_confidence(Evidence(hidden.confidence), [seen])
    assert raw is not None
    assert raw > hidden.accuracy + 0.1


rows = st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=30)


@settings(max_examples=100)
@given(st.lists(rows, min_size=1, max_size=3))
def test_no_threshold_comes_closer(drawn: list[list[tuple[int, bool]]]) -> None:
    """Tried one by one; ties among the confidences are on one side."""
    known = [
        Known(
            np.array([value / 20 for value, _ in one]),
            accuracy=sum(right for _, right in one) / len(one),
        )
        for one in drawn
    ]
    wanted = np.mean([each.accuracy for each in known])

    def off(at: float) -> float:
        return float(abs(np.mean([(e.confidence >= at).mean() for e in known]) - wanted))

    tried = [*(value / 20 for value in range(21)), 2.0]
    assert off(estimates.threshold(known)) == pytest.approx(min(map(off, tried)))


def test_all_right_is_not_right_everywhere() -> None:
    """Where every known text is right, a text less sure than all of them is not taken for right."""
    known = Known(np.array([0.9, 0.8, 0.95]), accuracy=1.0)
    found = estimates.by_threshold(Evidence(np.array([0.5, 0.85])), [known])
    assert found == 0.5
    none = Known(np.array([0.9, 0.8]), accuracy=0.0)
    assert estimates.by_threshold(Evidence(np.array([0.99])), [none]) == 0.0


def test_errors_are_those_of_languages_left_out_one_by_one() -> None:
    known = languages(500, twist=3.0)
    for method in ("confidence", "confidence+", "threshold", "mean"):
        gaps = []
        for name, each in known.items():
            others = [other for key, other in known.items() if key != name]
            found = {**METHODS, "mean": estimates.by_mean}[method](each, others)
            assert found is not None
            gaps.append(found - each.accuracy)
        measured = error(method, known)
        assert measured is not None
        assert measured.mean == pytest.approx(np.abs(gaps).mean())
        assert measured.bias == pytest.approx(np.mean(gaps))
        assert measured.worst == pytest.approx(np.abs(gaps).max())
        assert measured.worst_language == f"l{int(np.abs(gaps).argmax())}"
        assert measured.languages == 5
    found = estimates.errors(known)
    assert "mean" not in ranked(found)
    assert ranked(found)[-1] in ("agreement", "agreement+")  # of which nothing is known here
    assert found["confidence"] is not None
    assert found["threshold"] is not None
    assert found["threshold"].mean < found["confidence"].mean  # too sure in all of them


def test_one_language_is_not_enough_to_know_an_error() -> None:
    known = {"en": languages(100)["l0"]}
    assert set(estimates.errors(known).values()) == {None}
    assert ranked(estimates.errors(known)) == list(METHODS)
    assert estimate("threshold", "en", known["en"], known) is None  # nothing but itself
    assert estimate("threshold", "de", known["en"], known) is not None


def test_agreement_is_shifted_by_what_it_misses_elsewhere() -> None:
    sure = np.array([0.9])
    known = {"en": Known(sure, None, 0.9), "de": Known(sure, 0.7, 0.8), "fr": Known(sure, 0.9, 0.9)}
    new = Evidence(sure, 0.6)
    assert estimate("agreement", "sw", new, known) == 0.6
    assert estimate("agreement+", "sw", new, known) == pytest.approx(0.65)
    measured = error("agreement+", known)
    assert measured is not None
    assert measured.languages == 2
    assert measured.mean == pytest.approx(0.1)
    assert estimate("agreement+", "sw", Evidence(sure, 0.99), known) == 1.0
    assert estimate("agreement+", "sw", Evidence(sure), known) is None


def test_few_labels_are_off_by_themselves() -> None:
    """Beside many simulated samples of as many rows."""
    generator = np.random.default_rng(0)
    drawn = generator.binomial(50, 0.8, 20_000) / 50
    known = {"en": Known(np.ones(50), accuracy=0.8)}
    assert estimates.chance(known) == pytest.approx(np.abs(drawn - 0.8).mean(), rel=0.05)
