"""How long a client's requests may wait, and when that becomes shorter.

A queue that smooths bursts is welcome; one that stands helps nobody (Nichols & Jacobson 2012). What follows
is a heuristic with that idea, not their CoDel, which drops by how long packets have waited. A client whose queue grows beyond what it was before, window after window, or who has reached the longest
wait, is shed: what would wait longer than it works is refused, also of what waits already. So those who
are let in are answered about as fast as ever, and nothing is left to work off when the flood ends.
Clients who wait for their answers have a queue that does not grow: it is as long as they are many.
"""

from __future__ import annotations

from dataclasses import dataclass

SHORT_QUEUE = 32
"""Rows like its own that a request may wait for: on a slow model even a short queue takes long."""

BRIEF = 0.005
"""Seconds that nobody minds to wait."""

STRETCH = 1.0
"""A request may wait so many times its own work."""

COMPANY = 8
"""And for as much of so many other clients, who have their turns in between."""

WINDOW = 0.025
"""Seconds from one look at the queue to the next, or twice as long as a request takes."""

CALM = 0.25
"""Seconds without a request after which a flood is over; shorter pauses are noise."""

GROWTH = 1.25
"""A queue has grown if it is so much longer than it ever was, and by two."""

MEMORY = 10.0
"""Seconds in which half of what a queue ever was is forgotten."""


CROWD = 64
"""Requests of a client in one round of the event loop that are the cause if it is late. Clients who wait
for their answers have as many in a round as they are."""


@dataclass(slots=True)
class Overload:
    """Of one client. Times are the caller's clock, in seconds; so is the lock."""

    wait: float
    shedding: bool = False
    seen: float = 0.0  # when it was heard of last
    typical: float = 0.0  # seconds of work of a request
    _rows: float = 1.0  # and how many rows it has
    _ends: float = 0.0  # of the window under way
    _inside: int = 0  # requests that were let in and not answered
    _longest: float = 0.0  # the most of them, at the end of a window
    _growing: int = 0  # windows in a row in which they became more than ever
    _arrived: int = 0  # in this window
    _refused: int = 0
    _round: float = 0.0  # of the event loop, by when it began
    _came: int = 0  # in it

    @property
    def typical_row(self) -> float:
        return self.typical / max(1.0, self._rows)

    def longest(self, work: float, rows: float = 1) -> float:
        """The seconds that a request of so many seconds of work in so many rows may wait now."""
        return brief(work) if self.shedding else self.in_calm(work, rows)

    def in_calm(self, work: float, rows: float = 1) -> float:
        """While it is not shed."""
        return max(self.wait, brief(work), SHORT_QUEUE * work / rows)

    def in_company(self, work: float, rows: float = 1) -> float:
        """With what other clients have, which is no reason to shed this one."""
        return max(self.in_calm(work, rows), COMPANY * work)

    def comes(self, round_: float) -> None:
        """Another request, in the round of the event loop that began then."""
        if round_ != self._round:
            self._round, self._came = round_, 0
        self._came += 1

    @property
    def crowd(self) -> bool:
        return self._came > CROWD

    def begins(self, now: float, ahead: float, lag: float = 0.0) -> bool:
        """Whether shedding begins now, where a typical request has ``ahead`` seconds in front of it and
        the event loop is ``lag`` seconds late. What waits to be read is no queue that anybody sees: a
        late loop and a crowd in a round of it show it."""
        self._look(now)
        standing = self._growing >= 2 and max(ahead, lag) > brief(self.typical)
        late = ahead > self.longest(self.typical, self._rows) or (self.crowd and lag > self.wait)
        began = not self.shedding and (standing or late)
        self.shedding |= began
        return began

    def let_in(self, now: float) -> None:
        self._look(now)
        self._arrived += 1
        self._inside += 1

    def refused(self, now: float) -> None:
        self._look(now)
        self._arrived += 1
        self._refused += 1

    def evicted(self) -> None:
        """One that had been let in was refused after all."""
        self._refused += 1
        self._inside -= 1

    def answered(self, now: float, work: float, rows: int = 1) -> None:
        self._look(now)
        self._inside -= 1
        new = 0.05 if self.typical else 1.0
        self.typical += new * (work - self.typical)
        self._rows += new * (rows - self._rows)

    def _look(self, now: float) -> None:
        """At the end of a window: has the queue grown, is there still something to shed?"""
        passed, self.seen = now - self.seen, now
        if now < self._ends:
            return
        length = max(WINDOW, 2 * self.typical)
        recent = now < self._ends + max(CALM, length)  # else it has fallen silent
        self._growing = self._growing + 1 if self._inside > GROWTH * self._longest + 2 else 0
        if not self.shedding:
            kept = 0.5 ** (max(passed, length) / MEMORY)
            self._longest = max(kept * self._longest, self._inside)
        # A few refusals are normal with so short a limit.
        self.shedding &= recent and self._refused > 0.1 * self._arrived
        self._arrived = self._refused = 0
        self._ends = now + length


def brief(work: float) -> float:
    """What a request of so many seconds of work hardly notices."""
    return max(BRIEF, STRETCH * work)
