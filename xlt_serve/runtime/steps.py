"""Prediction as steps: what is asked of a model, apart from how it is run.

A prediction is a generator. It yields a ``RunRequest`` (rows for one graph of the bundle), is sent the
outputs of those rows, and returns its answer in the end. It never runs anything itself, so the same
logic serves a list in a script (``drive``: one after the other) and a live queue that fills each
batch with the rows of many requests.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Outputs: TypeAlias = dict[str, npt.NDArray[Any]]
"""Each output of the graph by name, [rows, …]."""


class Row(Protocol):
    """What one place of a batch holds; ``length`` in tokens is what it costs to run."""

    @property
    def length(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Run these rows on this graph: in any batches, with any neighbours, the outputs in order."""

    graph: str
    rows: Sequence[Row]


T = TypeVar("T")
Steps: TypeAlias = Generator[RunRequest, Outputs, T]


def drive(steps: Steps[T], run: Callable[[RunRequest], Outputs]) -> T:
    """The answer of ``steps``, each request run when it comes."""
    try:
        request = next(steps)
        while True:
            request = steps.send(run(request))
    except StopIteration as done:
        answer: T = done.value
        return answer


def join(parts: Sequence[tuple[Sequence[int], Outputs]], rows: int) -> Outputs:
    """Outputs in the order of a request, from batches of its row numbers and what they gave."""
    if len(parts) == 1 and list(parts[0][0]) == list(range(rows)):
        return parts[0][1]
    whole: Outputs = {}
    for numbers, outputs in parts:
        for name, values in outputs.items():
            if name not in whole:
                whole[name] = np.zeros((rows, *values.shape[1:]), dtype=values.dtype)
            whole[name][list(numbers)] = values
    return whole
