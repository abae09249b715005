"""Which requests are let in: by the work in front of them, and by how much is refused already.

A request's cost is guessed from its bytes until it is tokenised. All methods of ``Admission`` are
called with the scheduler's lock held.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypedDict

from xlt_serve.errors import XltError
from xlt_serve.serving.load_shedding import Overload

BYTES_PER_TOKEN = 3
"""A guess at what a text costs before it is tokenised; most scripts have more."""

PATIENCE = 2.0
"""A long request's rows are due at this multiple of their run time, since a row costs more than its
run, and a row that is behind its time gets in front of newcomers."""

BEAT = 0.01
"""Seconds from one look at the event loop to the next, while there is an overload."""

SMALL = 300
"""Tokens of a plain request that are prepared and finished on the event loop: that takes a fifth of a
millisecond, and to wake another thread and be woken by it takes as long."""


class Busy(XltError):
    """More waits than may wait; ``retry_after`` is in seconds."""

    code = "busy"

    def __init__(self, waiting: float, retry_after: float) -> None:
        self.retry_after = max(1, math.ceil(retry_after))
        super().__init__(
            f"{waiting:.1f} s of work are waiting",
            "the service takes no more for now",
            f"try again in {self.retry_after} s",
        )


class Closed(XltError):
    code = "shutting_down"


@dataclass(frozen=True, slots=True)
class Limits:
    """``tokens`` and ``wait`` (seconds) bound what waits, ``calm`` as in ``load_shedding``. ``slice`` is how
    long a run should take at most, so that the next request does not wait longer for its turn, if that
    leaves ``least`` tokens in a run; ``speed`` is the first guess at tokens per second."""

    tokens: int = 500_000
    wait: float = 2.0
    calm: float = 1.0
    slice: float = 0.1
    least: int = 128
    speed: float = 2000.0


@dataclass(eq=False, slots=True)
class Ticket:
    """A request that was let in: until it leaves, its rows wait and run."""

    arrived: float
    guess: int  # tokens that it is held to cost until it is tokenised
    rows: int = 1  # how many it will have, more or less
    share: int = 0  # guessed tokens of each of its chunks
    elsewhere: bool = False  # it goes to translators first
    small: bool = False  # so that the event loop prepares and finishes it
    away: int = 0  # guessed tokens that are with translators now
    begun: float | None = None  # when the first of its chunks was to be tokenised
    asked: float = 0.0  # seconds of work that it has asked for
    left: float = 0.0  # those of them that have not run
    waited: float | None = None  # seconds from ``begun`` until its first row ran
    ran: float = 0.0  # seconds of the runs that it had a part in
    tokens: int = 0
    parts: int = 0  # run requests of it that are under way
    gone: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def until_run(self) -> float:
        """Seconds from its arrival until its first row ran, translating included."""
        return (self.begun or self.arrived) - self.arrived + (self.waited or 0.0)


class Demand(TypedDict, total=False):
    """What a request will need beside its bytes. ``elsewhere``: it goes to translators first; work
    there delays only requests that need translation, too. ``small``: only tokenising is needed, which
    the event loop may do."""

    generators: int
    rows: int
    elsewhere: bool
    small: bool


class Admission:
    """Requests that were let in and have not left. ``speed``: tokens a second of the fastest graph;
    ``queued``: tokens that wait for a run."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float],
        lock: AbstractContextManager[Any],
        speed: Callable[[], float],
        queued: Callable[[], int],
    ) -> None:
        self.limits, self.clock, self.open = limits, clock, True
        self.inside: set[Ticket] = set()
        self.guessed = 0  # tokens of requests that were let in and not tokenised yet
        self.overload = Overload(limits.wait, limits.calm)
        self._lock, self._speed, self._queued = lock, speed, queued
        self._typical = 0.0  # seconds of work of a request
        self._pace = 0.0  # seconds that preparing takes for a guessed token

    def admit(
        self,
        size: int,
        timeout: float | None = None,
        generators: int = 1,
        rows: int = 1,
        elsewhere: bool = False,
        small: bool = False,
    ) -> Ticket:
        """See ``Scheduler.admit``."""
        guess = size // BYTES_PER_TOKEN + 1
        if not self.open:
            raise Closed("", "the service is shutting down", "send the request again")
        ahead = self.ahead(guess * self._cost(), elsewhere)
        self.refuse_if_full()
        longest = self.limits.wait if timeout is None else min(self.limits.wait, timeout)
        queued, share = self._queued(), guess // generators
        # This one's own affair: a long request, or one that is to be translated.
        if ahead > longest or (queued and queued + share > self.limits.tokens):
            raise Busy(ahead, ahead - longest / 2)
        self.overload.let_in()
        ticket = Ticket(
            self.clock(), guess, max(1, rows), share, elsewhere, small and share <= SMALL
        )
        self.guessed += guess
        self.inside.add(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        ticket.gone = True
        self.inside.discard(ticket)
        self._typical += 0.05 * (ticket.asked - self._typical)
        self.settle(ticket, ticket.guess)

    def settle(self, ticket: Ticket, tokens: int) -> None:
        """A cost is known, or of no interest any more: the guess at it is taken back."""
        self.guessed -= tokens
        ticket.guess -= tokens

    def prepared(self, ticket: Ticket, seconds: float) -> None:
        """A chunk was tokenised in so many seconds."""
        self._pace += 0.05 * (seconds / (ticket.share + 1) - self._pace)
        self.settle(ticket, min(ticket.share, ticket.guess))

    def ahead(self, work: float, elsewhere: bool = False) -> float:
        """Seconds of others' work that runs before a request of so many seconds is through: of each
        of them what is due by then, and its next row; ``elsewhere``: also what is being translated."""
        now, cost = self.clock(), self._cost()
        total = 0.0
        for ticket in self.inside:
            here = ticket.guess if elsewhere else max(0, ticket.guess - ticket.away)
            left = ticket.left + here * cost
            done = ticket.asked - ticket.left
            due = max(0.0, (now + work - ticket.arrived) / PATIENCE - done)
            total += min(left, due + (done + left) / ticket.rows)
        return total

    def refuse_if_full(self) -> None:
        """``Busy`` where a typical request would wait too long, by what is too long now."""
        ahead, now = self.ahead(self._typical), self.clock()
        before = self.overload.lasts(now)
        longest = self.overload.longest(now, self._typical)
        waits = self.overload.turns_away(now, ahead, self._typical)
        if waits is None:
            return
        if not before:
            self._watch()
        raise Busy(waits, ahead - longest / 2)

    def _cost(self) -> float:
        """Seconds that a guessed token takes."""
        return 1 / self._speed() + self._pace

    def _watch(self) -> None:
        """How late the event loop is, as long as the overload lasts: while few are let in, few
        outcomes tell."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # asked from elsewhere, as tests do
            return

        def beat(due: float) -> None:
            now = self.clock()
            with self._lock:
                self.overload.lagged(now, max(0.0, now - due))
                if self.overload.lasts(now):
                    loop.call_later(BEAT, beat, now + BEAT)

        loop.call_later(BEAT, beat, self.clock() + BEAT)
