"""Texts to label beside sorting all of them."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlt_serve.errors import UsageError
from xlt_serve.evaluation import sampling
from xlt_serve.evaluation.sampling import RANDOM, UNSURE, LabelCandidates, Smallest, key
from xlt_serve.files.labelled import Columns, Labelled, Stated

FILE = Path("texts.csv")


def stated(text: str, number: int = 1) -> Stated:
    return Stated(FILE, number, Labelled(text, "", "de", id=str(number - 1)), {})


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1)), max_size=60), st.integers(2, 12))
def test_the_least_sure_texts_each_once(seen: list[tuple[int, float]], count: int) -> None:
    margins = dict(seen)  # a text has one margin, however often it comes
    found = Smallest(count)
    for text, _ in seen:
        found.add(margins[text], key(str(text)), stated(str(text)))
    wanted = sorted(margins, key=lambda text: (margins[text], key(str(text))))[:count]
    assert [row.row.text for _, row in found.in_order()] == [str(text) for text in wanted]


def test_half_by_chance_half_unsure_none_twice() -> None:
    candidates = LabelCandidates(count=100, seed=0)
    for number in range(5000):
        candidates.add(number / 5000, stated(f"text {number % 2500}", number))
    drawn = candidates.drawn(without={key("text 3")})
    kinds = Counter(kind for kind, _ in drawn)
    assert kinds == {RANDOM: 50, UNSURE: 50}
    texts = [row.row.text for _, row in drawn]
    assert len(set(texts)) == 100
    assert "text 3" not in texts
    unsure = {int(row.row.text.split()[1]) for kind, row in drawn if kind == UNSURE}
    assert max(unsure) < 60  # the least sure, but for those that chance took
    first = [kind for kind, _ in drawn[:50]]
    assert 10 < first.count(RANDOM) < 40  # mixed


def test_chance_is_blind_to_how_often_and_where_a_text_stands() -> None:
    """Over many seeds, each of ten texts is as often among the five, though one fills half of the file."""
    counts: Counter[str] = Counter()
    texts = [*["often"] * 9, *(f"text {n}" for n in range(9))]
    for seed in range(1000):
        candidates = LabelCandidates(count=10, seed=seed)
        for text in texts:
            candidates.add(1.0, stated(text))
        counts.update(row.row.text for kind, row in candidates.drawn(set()) if kind == RANDOM)
    assert len(counts) == 10
    assert sum(counts.values()) == 5000
    assert all(abs(count - 500) < 5 * np.sqrt(1000 * 0.25) for count in counts.values())


def test_few_texts_are_all_taken() -> None:
    candidates = LabelCandidates(count=100, seed=0)
    for number in range(7):
        candidates.add(0.5, stated(f"text {number}"))
    assert len(candidates.drawn(set())) == 7


def test_the_table_has_the_columns_that_the_texts_had() -> None:
    row = Stated(FILE, 8, Labelled('a "b",\nc', "", "de", pair="d", id="x7"), {})
    columns = Columns("body", "topic", "title", "key", "lang")
    (found,) = csv.DictReader(io.StringIO(sampling.table([(RANDOM, row)], columns, "de").decode()))
    wanted = {"key": "x7", "body": 'a "b",\nc', "title": "d", "lang": "de", "topic": ""}
    assert found == wanted | {"xlt_drawn": "random"}
    (plain,) = csv.DictReader(
        io.StringIO(sampling.table([(UNSURE, row)], Columns(label=""), "de").decode())
    )
    assert list(plain) == ["xlt_row", "text", "language", "label", "xlt_drawn"]
    assert plain["xlt_row"] == "8"
    with pytest.raises(UsageError, match="language: names two columns"):
        sampling.header(Columns(text="language"))
