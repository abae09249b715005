"""How many bytes each row of an Arrow array holds, of any type."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xlt_serve.files.packages import arrow, needed

Weights = npt.NDArray[np.int64]


def of_batch(batch: Any) -> Weights:
    """A row each, all columns together; never 0, so that even empty rows fill a window."""
    found = np.full(batch.num_rows, 8 * max(1, batch.num_columns), dtype=np.int64)
    for column in batch.columns:
        found += of_array(column)
    return found


def of_array(array: Any) -> Weights:
    """What is in texts and lists is counted, of other values their width."""
    types, kind = arrow("Parquet").types, array.type
    if types.is_dictionary(kind):
        compute = needed("pyarrow.compute", "Parquet", "score")
        values = of_array(array.dictionary)
        chosen = compute.fill_null(array.indices, -1).to_numpy(zero_copy_only=False)
        chosen = chosen.astype(np.int64)  # a null is the 0 at the end
        return np.asarray(np.append(values, 0)[chosen], dtype=np.int64)
    if types.is_struct(kind):
        return sum(
            (of_array(array.field(i)) for i in range(kind.num_fields)),
            np.zeros(len(array), dtype=np.int64),
        )
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        ends = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        parts = [array.keys, array.items] if types.is_map(kind) else [array.values]
        return sum(
            (_between(of_array(part), ends) for part in parts), np.zeros(len(array), dtype=np.int64)
        )
    if _is_text(kind):
        compute = needed("pyarrow.compute", "Parquet", "score")
        lengths = compute.fill_null(compute.binary_length(array), 0)
        return np.asarray(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)
    return np.full(len(array), _width(array), dtype=np.int64)


def _between(weights: Weights, ends: Weights) -> Weights:
    """Sums of the values of each list."""
    sums = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(weights)])
    return np.asarray(sums[ends[1:]] - sums[ends[:-1]], dtype=np.int64)


def _is_text(kind: Any) -> bool:
    types = arrow("Parquet").types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def _width(array: Any) -> int:
    """Of a value; where the type does not say it, the mean of this array's."""
    try:
        return max(1, int(array.type.bit_width) // 8)
    except ValueError:
        return -(-int(array.nbytes) // max(1, len(array)))
