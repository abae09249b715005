from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.runtime.batching import padding_waste, plan

LENGTHS = st.lists(st.integers(1, 600), max_size=200)
BUDGETS = st.integers(1, 5000)


@given(LENGTHS, BUDGETS)
def test_every_item_runs_exactly_once(lengths: list[int], budget: int) -> None:
    assert sorted(i for batch in plan(lengths, budget) for i in batch) == list(range(len(lengths)))


@given(LENGTHS, BUDGETS)
def test_no_batch_exceeds_the_budget_unless_one_item_does(lengths: list[int], budget: int) -> None:
    for batch in plan(lengths, budget):
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= budget


@given(LENGTHS, BUDGETS)
def test_lengths_do_not_overlap_between_batches(lengths: list[int], budget: int) -> None:
    batches = plan(lengths, budget)
    for longer, shorter in itertools.pairwise(batches):
        assert min(lengths[i] for i in longer) >= max(lengths[i] for i in shorter)


@given(LENGTHS, BUDGETS)
def test_batches_are_full(lengths: list[int], budget: int) -> None:
    """The next item would not have fitted: no batch is cut short."""
    batches = plan(lengths, budget)
    for batch, following in itertools.pairwise(batches):
        assert lengths[batch[0]] * (len(batch) + 1) > budget, (batch, following)


@given(st.lists(st.integers(1, 600), min_size=1), BUDGETS)
def test_waste_is_a_share_and_zero_for_lone_items(lengths: list[int], budget: int) -> None:
    assert 0 <= padding_waste(lengths, plan(lengths, budget)) < 1
    assert padding_waste(lengths, [[i] for i in range(len(lengths))]) == pytest.approx(0)


def test_a_budget_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 token, was: 0"):
        plan([3], 0)
