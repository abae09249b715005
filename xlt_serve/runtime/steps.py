"""Prediction as steps: what is asked of models and translators, apart from how it is run.

A prediction is a generator. It yields requests: rows for one graph of the bundle, or texts to
translate. It is sent what comes of each, and returns its answer in the end. It never runs anything
itself, so the same logic serves a list in a script (``Driven``: one request after the other) and a
live queue that fills each batch with the rows of many requests.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from xlt_serve.errors import ItemError
from xlt_serve.types import Outcome

Outputs: TypeAlias = dict[str, npt.NDArray[Any]]
"""Each output of the graph by name, [rows, …], as the runtime gives it."""

LARGEST = float(np.finfo(np.float32).max)
"""What an output may be at most: with a number of this size, and a manifest's temperature, all that
is computed afterwards in float64 stays finite."""


class RowOutputs(Mapping[str, npt.NDArray[Any]]):
    """The outputs of a request. A row that holds a NaN, an infinity or what no float32 can hold has no
    answer, and asking for it is an ItemError: no mode can take it for one by oversight."""

    def __init__(self, values: Outputs) -> None:
        self._values = values
        # One look at all of it is what most requests pay for.
        self._all_good = all(_finite(value) for value in values.values())

    def rows(self, start: int, end: int) -> Outputs:
        """Those of the rows from ``start`` up to ``end``."""
        mine = {name: value[start:end] for name, value in self._values.items()}
        if not self._all_good and not all(_finite(value) for value in mine.values()):
            raise ItemError(
                "not_finite",
                "the model's output",
                "is not a finite number for this item",
                "send the item without unusual options; if it stays, export the bundle again",
            )
        return mine

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Of all rows, none of which may be bad."""
        return self.rows(0, len(self._values[name]))[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _finite(value: npt.NDArray[Any]) -> bool:
    """Whether a float32 holds all of it. A maximum is NaN where one of them is, and NaN compares as
    false; it is compared as a Python float, since a float16 would take the limit for infinity."""
    return not value.size or float(np.abs(value).max()) <= LARGEST


class Row(Protocol):
    """What one place of a batch holds; ``length`` in tokens is what it costs to run."""

    @property
    def length(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Run these rows on this graph: in any batches, with any neighbours, the outputs in order."""

    graph: str
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class TranslateRequest:
    """Translate each text from its language (None: not known) into ``target``; answered with an
    ``Outcome`` for each. ``meanwhile`` is work for the time that the engines take."""

    texts: Sequence[str]
    languages: Sequence[str | None]
    target: str
    meanwhile: Callable[[], object]


T = TypeVar("T")
Steps: TypeAlias = Generator[RunRequest | TranslateRequest, Any, T]
"""Sent ``RowOutputs`` for a ``RunRequest``, a list of outcomes for a ``TranslateRequest``."""

Run: TypeAlias = Callable[[RunRequest], RowOutputs]
Submit: TypeAlias = Callable[[TranslateRequest], "Future[list[Outcome]]"]


class Driven(Generic[T]):
    """Steps on their way. They are begun at once: up to their first run, translating under way."""

    def __init__(self, steps: Steps[T], submit: Submit) -> None:
        self._steps, self._submit = steps, submit
        self._translating: Future[list[Outcome]] | None = None
        self._request: RunRequest | TranslateRequest | None = None
        self._answer: T
        self._send(None)

    def finish(self, run: Run) -> T:
        """The answer, each request run when it comes."""
        try:
            while self._request is not None:
                if isinstance(self._request, RunRequest):
                    self._send(run(self._request))
                else:
                    assert self._translating is not None
                    self._send(self._translating.result())
        except BaseException:
            self.cancel()
            raise
        return self._answer

    def cancel(self) -> None:
        """Nobody waits any more for what is being translated."""
        if self._translating is not None:
            self._translating.cancel()

    def _send(self, value: Any) -> None:
        try:
            self._request = self._steps.send(value)
        except StopIteration as done:
            self._request, self._answer = None, done.value
            return
        if isinstance(self._request, TranslateRequest):
            self._translating = self._submit(self._request)
            try:
                self._request.meanwhile()
            except BaseException:
                self.cancel()
                raise


def drive(steps: Steps[T], run: Run, submit: Submit | None = None) -> T:
    """The answer of ``steps``; without ``submit`` they may not ask for translations."""
    return Driven(steps, submit or _no_translations).finish(run)


def _no_translations(request: TranslateRequest) -> Future[list[Outcome]]:
    raise TypeError(
        f"{len(request.texts)} texts are to be translated, and nobody is there to do it"
    )


def join(parts: Sequence[tuple[Sequence[int], Outputs]], rows: int) -> RowOutputs:
    """Outputs in the order of a request, from batches of its row numbers and what they gave. Whoever
    drives steps comes by here, so this is where outputs are looked at."""
    if len(parts) == 1 and list(parts[0][0]) == list(range(rows)):
        return RowOutputs(parts[0][1])
    whole: Outputs = {}
    for numbers, outputs in parts:
        for name, values in outputs.items():
            if name not in whole:
                whole[name] = np.zeros((rows, *values.shape[1:]), dtype=values.dtype)
            whole[name][list(numbers)] = values
    return RowOutputs(whole)
