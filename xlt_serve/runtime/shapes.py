"""The named dimensions of a graph, in numbers, and rounded up to buckets."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from xlt_serve.errors import BundleError, UsageError
from xlt_serve.runtime.gpu.buckets import Buckets
from xlt_serve.runtime.onnx_file import Dim

ROWS = ("batch", "texts", "draws")
LENGTHS = ("length", "source_length")

Dims = Mapping[str, tuple[Dim, ...]]
"""Dimensions by input."""

Sizes = Mapping[str, int]
"""Numbers by the name of a dimension."""

_SUM = re.compile(r"(\w+) \+ (\d+)")


def split(dim: Dim) -> tuple[str, int]:
    """``length + 5`` → length, 5; a number has no name."""
    if isinstance(dim, int):
        return "", dim
    found = _SUM.fullmatch(dim)
    return (found[1], int(found[2])) if found else (dim, 0)


def concrete(dims: tuple[Dim, ...], sizes: Sizes) -> tuple[int, ...]:
    """A shape in numbers."""
    parts = [split(dim) for dim in dims]
    return tuple(sizes[name] + more if name else more for name, more in parts)


def names(dims: Dims) -> list[str]:
    """Every name that occurs, in order; one that serving does not know is refused."""
    found = dict.fromkeys(name for shape in dims.values() for name, _ in map(split, shape) if name)
    if unknown := sorted(set(found) - {*ROWS, *LENGTHS}):
        raise BundleError(
            f"dimension {unknown[0]}",
            f"is none of {', '.join((*ROWS, *LENGTHS))}",
            "export the bundle again with this version",
        )
    return list(found)


def sizes_of(dims: Dims, feeds: Mapping[str, npt.NDArray[np.generic]]) -> dict[str, int]:
    """What the names stand for in these arrays; arrays that contradict the graph are refused."""
    if set(feeds) != set(dims):
        raise UsageError(f"inputs {', '.join(feeds)}", f"must be {', '.join(dims)}")
    out: dict[str, int] = {}
    for input_name, shape in dims.items():
        given = feeds[input_name].shape
        if len(given) != len(shape):
            raise UsageError(f"{input_name} {given}", f"must have the dimensions {shape}")
        for dim, number in zip(shape, given, strict=True):
            name, more = split(dim)
            expected = out.setdefault(name, number - more) + more if name else more
            if number != expected or number <= more * bool(name):
                raise UsageError(f"{input_name} {given}", f"must have the dimensions {shape}")
    return out


def rounded(sizes: Sizes, buckets: Buckets) -> dict[str, int]:
    """The sizes that run: each length in its bucket, rows in that of the longest of them."""
    lengths = {name: buckets.length(sizes[name]) for name in LENGTHS if name in sizes}
    longest = max(lengths.values(), default=buckets.lengths[0])
    rows = {name: buckets.count(sizes[name], longest) for name in ROWS if name in sizes}
    return {**rows, **lengths}


def corners(dims: Dims, buckets: Buckets) -> tuple[Sizes, Sizes, Sizes]:
    """The least, the commonest and the largest sizes that ``rounded`` gives."""
    rows, length = buckets.common
    found = names(dims)
    return (
        {name: 1 if name in ROWS else buckets.lengths[0] for name in found},
        {name: rows if name in ROWS else length for name in found},
        {name: buckets.most_rows if name in ROWS else buckets.lengths[-1] for name in found},
    )
