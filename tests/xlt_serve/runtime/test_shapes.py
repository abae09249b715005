from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.errors import BundleError, UsageError
from xlt_serve.runtime.gpu.buckets import choose
from xlt_serve.runtime.shapes import concrete, corners, names, rounded, sizes_of

PERTURBED = {
    "input_ids": ("texts", "length"),
    "attention_mask": ("texts", "length"),
    "row": ("draws",),
    "noise": ("draws", "length + 5", 8),
}
PAIRED = {"input_ids": ("batch", "length"), "source_ids": ("batch", "source_length")}
SIZES = st.fixed_dictionaries(
    {name: st.integers(1, 60) for name in ("texts", "draws", "length", "batch", "source_length")}
)


@pytest.mark.parametrize("dims", [PERTURBED, PAIRED])
@given(sizes=SIZES)
def test_sizes_are_read_back_from_arrays(
    dims: dict[str, tuple[int | str, ...]], sizes: dict[str, int]
) -> None:
    arrays = {name: np.zeros(concrete(shape, sizes)) for name, shape in dims.items()}
    assert sizes_of(dims, arrays) == {name: sizes[name] for name in names(dims)}


@given(SIZES, st.lists(st.integers(1, 60), max_size=30), st.integers(1, 900))
def test_what_runs_holds_the_batch_and_lies_within_the_corners(
    sizes: dict[str, int], seen: list[int], budget: int
) -> None:
    buckets = choose(Counter(seen), 60, budget)
    for dims in (PERTURBED, PAIRED):
        wanted = {name: sizes[name] for name in names(dims)}
        run = rounded(wanted, buckets)
        least, common, largest = corners(dims, buckets)
        for name, size in run.items():
            assert least[name] <= size <= largest[name]
            assert least[name] <= common[name] <= largest[name]
            assert size >= wanted[name] or name in ("texts", "draws", "batch")


def test_arrays_that_contradict_the_graph_are_refused() -> None:
    right = {
        name: np.zeros(concrete(shape, {"texts": 2, "draws": 3, "length": 4}))
        for name, shape in PERTURBED.items()
    }
    wrong: dict[str, np.ndarray] = {
        "input_ids": np.zeros((2, 5)),
        "attention_mask": np.zeros((3, 4)),
        "row": np.zeros((3, 1)),
        "noise": np.zeros((3, 4, 8)),
    }
    for name, array in wrong.items():
        with pytest.raises(UsageError, match="must have the dimensions"):
            sizes_of(PERTURBED, right | {name: array})
    with pytest.raises(UsageError, match="must be input_ids, attention_mask, row, noise"):
        sizes_of(PERTURBED, {"input_ids": right["input_ids"]})
    with pytest.raises(UsageError, match="must have the dimensions"):
        sizes_of(PAIRED, {"input_ids": np.zeros((0, 4)), "source_ids": np.zeros((0, 4))})


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(BundleError, match="dimension width: is none of batch, texts, draws"):
        names({"x": ("batch", "width")})
