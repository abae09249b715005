from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from xlt_training.encoders import teacher
from xlt_training.encoders.targets import TargetStore


class CountingEncoder:
    """A vector that depends on the text alone, and a list of what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        self.asked += texts
        seeds = [sum(text.encode()) for text in texts]
        return np.stack([np.random.default_rng(s).normal(size=teacher.WIDTH) for s in seeds])


def test_a_text_is_encoded_once_and_its_vector_kept(tmp_path: Path) -> None:
    encoder = CountingEncoder()
    store = TargetStore(tmp_path, encoder)
    first = store(["a", "b", "a"])
    assert encoder.asked == ["a", "b"]
    np.testing.assert_array_equal(first[0], first[2])
    np.testing.assert_array_equal(store(["c", "b"])[1], first[1])
    np.testing.assert_array_equal(first, CountingEncoder()(["a", "b", "a"]).astype(np.float16))
    again = TargetStore(tmp_path, encoder)
    np.testing.assert_array_equal(again(["b", "a"]), first[[1, 0]])
    assert encoder.asked == ["a", "b", "c"]


def test_stores_in_one_folder_see_what_the_other_added(tmp_path: Path) -> None:
    left, right = CountingEncoder(), CountingEncoder()
    one, two = TargetStore(tmp_path, left), TargetStore(tmp_path, right)
    one(["a", "b"])
    two(["c", "b"])
    np.testing.assert_array_equal(one(["c", "a"]), two(["c", "a"]))
    assert (left.asked, right.asked) == (["a", "b"], ["c"])


def test_vectors_of_an_interrupted_write_are_overwritten(tmp_path: Path) -> None:
    encoder = CountingEncoder()
    TargetStore(tmp_path, encoder)(["a"])
    with (tmp_path / "vectors.f16").open("ab") as handle:
        handle.write(b"half a vector, of which the hashes know nothing")
    store = TargetStore(tmp_path, encoder)
    np.testing.assert_array_equal(store(["b", "a"]), encoder(["b", "a"]).astype(np.float16))
