"""What is printed of a model's scores."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from xlt_serve.evaluation.answers import Answers
from xlt_serve.evaluation.findings import confusion_lines, findings, short_lines

LABELS = ("a", "b b")


def answers(truth: list[str], best: list[str | None], given: list[bool]) -> Answers:
    shares = np.array([[0.9 if label == mine else 0.1 for label in LABELS] for mine in best])
    ids = tuple(str(number) for number in range(len(truth)))
    return Answers(LABELS, ids, tuple(truth), tuple(best), np.array(given), shares)


def test_one_of_several_is_told_with_all_that_a_reader_must_know() -> None:
    """Two of three rows right in English, one of two in German; one row failed, one label is strange."""
    found = findings(
        {
            "de": answers(["a", "c"], ["a", "b b"], [True, True]),
            "en": answers(["a", "a", "b b"], ["a", "a", None], [True, False, False]),
        },
        "shop",
        "1.0",
        "plain",
        "en",
    )
    first, *notes = short_lines(found, "A")
    assert first.startswith("A (shop 1.0): accuracy 0.583, macro-F1 ")
    assert first.endswith("coverage 0.667, error 0.250")  # (1 + 1/3) / 2; (1/2 + 0) / 2
    # German F1: a 1, b 0, c 0; English: a 1, b 0.
    assert f"macro-F1 {(1 / 3 + 1 / 2) / 2:.3f}" in first
    told = "\n".join(notes)
    assert "rows that failed, counted as wrong: en 1" in told
    assert "labels that the model does not have, always wrong: c" in told
    assert "coverage is the share of rows" in told


def test_without_abstaining_there_is_no_coverage() -> None:
    found = findings({"en": answers(["a"], ["a"], [True])}, "runs/1", "", "plain", "en")
    assert short_lines(found, "B")[0] == (
        "B (runs/1): accuracy 1.000, macro-F1 1.000, cal. error 0.100"
    )


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b b", "c"]), st.sampled_from(LABELS), st.sampled_from(["de", "en"])
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=10, deadline=None)  # each draws its intervals
@given(ROWS)
def test_the_matrix_counts_each_row_once(rows: list[tuple[str, str, str]]) -> None:
    by_language = {
        language: answers([r[0] for r in mine], [r[1] for r in mine], [True] * len(mine))
        for language in ("de", "en")
        if (mine := [row for row in rows if row[2] == language])
    }
    _, _, *lines = confusion_lines(findings(by_language, "m", "", "plain", "en"))
    seen = Counter((true, best) for true, best, _ in rows)
    labels = [*LABELS, "c"][: len(lines)]
    for number, (true, line) in enumerate(zip(labels, lines, strict=True), 1):
        name = f"{number} {true}"
        assert line.startswith(name)
        counts = list(map(int, line.removeprefix(name).split()))
        assert counts == [seen[true, best] for best in labels]
