from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.errors import BundleError, UsageError
from xlt_serve.runtime.batching import plan
from xlt_serve.runtime.gpu.buckets import choose, measured

LENGTHS = st.lists(st.integers(1, 200), max_size=60)
LONGEST = st.integers(1, 200)
BUDGETS = st.integers(1, 5000)


@given(LENGTHS, LONGEST, BUDGETS, st.integers(1, 200))
def test_every_length_has_the_shortest_bucket_that_holds_it(
    lengths: list[int], longest: int, budget: int, tokens: int
) -> None:
    buckets = choose(Counter(lengths), longest, budget)
    assert buckets.lengths == tuple(sorted(set(buckets.lengths)))
    assert buckets.lengths[-1] == longest
    if tokens > longest:
        with pytest.raises(UsageError, match=f"longest bucket, {longest}; cut the text"):
            buckets.length(tokens)
    else:
        found = buckets.length(tokens)
        assert tokens <= found
        assert not any(tokens <= other < found for other in buckets.lengths)


@given(LENGTHS, LENGTHS, BUDGETS, st.integers(1, 64))
def test_every_planned_batch_fits_a_bucket(
    seen: list[int], lengths: list[int], budget: int, rows: int
) -> None:
    """Whatever was measured, and whatever comes: only the cap on rows may split a batch."""
    buckets = choose(Counter(seen), 200, budget, rows=rows)
    for batch in plan(lengths, budget):
        length = buckets.length(max(lengths[i] for i in batch))
        assert buckets.count(len(batch), length) >= min(len(batch), rows)


@given(LENGTHS, LONGEST, BUDGETS)
def test_row_counts_rise_from_one_and_the_common_bucket_is_one_of_them(
    lengths: list[int], longest: int, budget: int
) -> None:
    buckets = choose(Counter(lengths), longest, budget)
    for counts in buckets.rows.values():
        assert counts[0] == 1
        assert list(counts) == sorted(set(counts))
    assert buckets.common in set(buckets)
    assert buckets.most_rows == max(rows for rows, _ in buckets)


@given(st.lists(st.integers(1, 80), min_size=1, max_size=40), st.integers(1, 4))
def test_no_other_choice_of_lengths_pads_less(lengths: list[int], most: int) -> None:
    def padded(ends: tuple[int, ...]) -> int:
        return sum(min(end for end in ends if end >= length) for length in lengths)

    chosen = choose(Counter(lengths), 80, 1000, lengths=most).lengths
    assert len(chosen) <= most
    grid = range(8, 80, 8)
    others = ((*ends, 80) for count in range(most) for ends in itertools.combinations(grid, count))
    assert padded(chosen) == min(padded(ends) for ends in others)


def test_without_a_measurement_lengths_double() -> None:
    assert choose({}, 128, 4096).lengths == (16, 32, 64, 128)
    assert choose({}, 512, 4096).lengths == (16, 32, 64, 128, 256, 512)
    assert choose({}, 1, 1).rows == {1: (1,)}


def test_the_common_bucket_carries_most_tokens() -> None:
    assert choose({7: 10, 100: 900}, 128, 4096).common[1] == 104


def test_the_histogram_comes_from_the_manifest() -> None:
    assert measured({}) == {}
    assert measured({"lengths": {}}) == {}
    assert measured({"lengths": {"histogram": {"16": 3, "40": 1}}}) == {16: 3, 40: 1}
    for wrong in (7, {"histogram": 7}, {"histogram": {"x": 1}}, {"histogram": {"0": 1}}):
        with pytest.raises(BundleError, match=r"no histogram.*export the bundle again"):
            measured({"lengths": wrong})


@pytest.mark.parametrize("name", ["max_length", "budget", "lengths", "rows"])
def test_sizes_below_one_are_refused(name: str) -> None:
    given_ = {"max_length": 8, "budget": 8, "lengths": 1, "rows": 1} | {name: 0}
    with pytest.raises(UsageError, match=f"{name}=0: must be at least 1"):
        choose({}, given_.pop("max_length"), given_.pop("budget"), **given_)
