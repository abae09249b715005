"""The inputs of each graph: rows to arrays and back, padding, examples."""

from __future__ import annotations

import numpy as np

from xlt_serve.runtime.graph_io import pad


def test_pad() -> None:
    ids, mask = pad([[5, 6, 7], [8]], 1)
    np.testing.assert_array_equal(ids, [[5, 6, 7], [8, 1, 1]])
    np.testing.assert_array_equal(mask, [[1, 1, 1], [1, 0, 0]])
