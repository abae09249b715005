"""Slices: what a core answers at a time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlt_serve.scoring.slices import slices


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 400), max_size=60), st.integers(1, 9), st.integers(1, 900))
def test_slices_hold_every_row_once_and_are_sorted(sizes: list[int], rows: int, size: int) -> None:
    parts = slices(sizes, rows, size)
    flat = [number for part in parts for number in part]
    assert sorted(flat) == list(range(len(sizes)))
    assert [sizes[n] for n in flat] == sorted(sizes, reverse=True)
    for part in parts:
        assert len(part) <= rows
        assert len(part) == 1 or sum(sizes[n] for n in part) <= size


@pytest.mark.parametrize("cores", [2, 3, 4])
def test_slices_keep_all_cores_busy_to_the_end(cores: int) -> None:
    """A file of one window: each core takes the next slice when it has done its last."""
    sizes = [int(size) for size in random.Random(0).choices(range(20, 600), k=1000)]
    busy = [0] * cores
    for part in slices(sizes):
        busy[busy.index(min(busy))] += sum(sizes[n] for n in part)
    assert max(busy) <= 1.05 * sum(sizes) / cores
