"""How many rows may fail before a run is stopped: a file full of errors is no answer.

Nothing given: more than half of the first window is too many, which a wrong column or format is told by.
``100``: that many rows. ``5%``: that share of all rows, once there is a window of them or all are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xlt_serve.errors import DataError, UsageError
from xlt_serve.files.window import MOST_ROWS
from xlt_serve.scoring.columns import flat
from xlt_serve.scoring.counts import Counts, count, languages

SHOWN = 200
"""Characters of an error that the end of a run shows."""


class TooManyErrors(DataError):
    """More than were allowed."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """At most ``rows``, or ``share`` of them; neither: half of the first window."""

    rows: int | None = None
    share: float | None = None

    def holds(self, done: Counts, first: bool, last: bool) -> bool:
        """After the ``first`` window, in between, or when all rows are read (``last``)."""
        if self.rows is not None:
            return done.errors <= self.rows
        if self.share is not None:
            return done.errors <= self.share * done.rows or not (last or done.rows >= MOST_ROWS)
        return not first or 2 * done.errors <= done.rows


def parsed(given: str | None) -> Tolerance:
    if given is None:
        return Tolerance()
    number, percent = given.removesuffix("%"), given.endswith("%")
    try:
        value = float(number) if percent else int(number)
    except ValueError:
        value = -1
    if not 0 <= value <= (100 if percent else value):
        raise UsageError(
            f"max_errors={given}", "must be a number of rows, or a percentage up to 100%"
        )
    return Tolerance(share=value / 100) if percent else Tolerance(rows=int(value))


class Watch:
    """The errors of a run, window by window. ``done``: what earlier runs of it counted."""

    def __init__(self, given: str | None, done: Counts) -> None:
        self._given, self._tolerance = given, parsed(given)
        self._first = not done.rows
        self._done = Counts()
        self._done.add(done)
        self._example = ""

    def see(self, answers: Sequence[Mapping[str, Any]]) -> None:
        """A DataError if these are too many."""
        found = (answer["error"] for answer in answers if answer.get("error"))
        self.add(count(answers), next(found, None))

    def add(self, new: Counts, example: Any = None) -> None:
        self._example = self._example or flat(example)
        self._done.add(new)
        first, self._first = self._first, False
        self._check(first, False)

    def end(self) -> None:
        self._check(False, True)

    def _check(self, first: bool, last: bool) -> None:
        done = self._done
        if self._tolerance.holds(done, first, last):
            return
        shown = self._example[:SHOWN] + "…" * (len(self._example) > SHOWN)
        said = f"have errors ({languages(done.kinds)})" + (f", as {shown}" if shown else "")
        if self._given is None:
            remedy = "check --text and --in-format, or go on all the same with --max-errors 100%"
        else:
            remedy = f"--max-errors {self._given} allows fewer; what was scored is kept"
        raise TooManyErrors(
            f"{done.errors:,} of the first {done.rows:,} rows"
            if not last
            else f"{done.errors:,} of {done.rows:,} rows",
            said,
            remedy,
        )
