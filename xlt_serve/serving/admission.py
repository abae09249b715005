"""Which requests are let in: by the work in front of them, client by client.

A request's cost is guessed from its bytes until it is tokenised. Clients get equal shares (``fairness``),
so two things are looked at. What the client itself made wait: its own work, and of every other client at
most as much. And when a fair share would be through: of every other client at most as much as the client
has, this request included. So who asks for little is let in beside a few others, however much they have
asked for, and refused where many wait, or where the event loop is late by ``TOO_LATE``. All methods of
``Admission`` are called with the scheduler's lock held.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

from xlt_serve.errors import TooMuch, XltError
from xlt_serve.serving.heartbeat import BEAT
from xlt_serve.serving.load_shedding import Overload

BYTES_PER_TOKEN = 3
"""A guess at what a text costs before it is tokenised; most scripts have more."""

PATIENCE = 2.0
"""A long request's rows are due at this multiple of their run time, since a row costs more than its
run, and a row that is behind its time gets in front of newcomers."""

TOO_LATE = 1.0
"""Seconds by which the event loop may be late before it is a reason to refuse those who did not cause it."""

CLIENTS = 1000
"""Whose load is remembered: more than that only while they have requests here."""

SMALL = 300
"""Tokens of a plain request that are prepared and finished on the event loop: that takes a fifth of a
millisecond, and to wake another thread and be woken by it takes as long."""

FEW = 16
"""Items of such a request: each takes its time, though it were empty or no text at all."""

PACE = 1e-6
"""The first guess at the seconds that it takes to prepare a byte of text."""

PER_CHUNK = 300
"""Bytes that take as long to prepare as a chunk without any."""

PER_ITEM = 20
"""Bytes that take as long to prepare as it takes to look at an item and to answer it."""


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


class TooManyDraws(TooMuch):
    code = "too_many_draws"


def too_many_draws(found: int, most: int) -> TooManyDraws:
    return TooManyDraws(
        f"{found} drawn tokens",
        f"a request may draw {most} tokens",
        "ask for fewer samples, or split the list into several requests",
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """``tokens`` and ``wait`` (seconds, see ``load_shedding``) bound what waits. ``slice`` is how long a run
    should take at most, so that the next request does not wait longer for its turn, if that leaves
    ``least`` tokens in a run; ``speed`` is the first guess at tokens per second. One request may have so
    many ``windows``, and draw so many ``drawn_tokens``."""

    tokens: int = 500_000
    wait: float = 0.15
    slice: float = 0.1
    least: int = 128
    speed: float = 2000.0
    windows: int = 2000
    drawn_tokens: int = 5_000_000


@dataclass(eq=False, slots=True)
class Ticket:
    """A request that was let in: until it leaves, its rows wait and run."""

    arrived: float
    guess: int  # tokens that it is held to cost until it is tokenised
    rows: int = 1  # how many it will have, more or less
    share: int = 0  # guessed tokens of each of its chunks
    text: float = 0.0  # bytes to be prepared for each guessed token, whether they run or are cut
    piece: int = 0  # bytes to be prepared of each chunk
    elsewhere: bool = False  # it goes to translators first
    small: bool = False  # so that the event loop prepares and finishes it
    client: str = ""
    most: int | None = None  # rows that it may have
    drawn: int | None = None  # tokens that it may have
    retokenised: bool = False  # what it draws is text
    pushed: int = 0  # rows that it has asked for
    evicted: Busy | None = None  # it was let in, and refused before it could be answered in time
    away: int = 0  # guessed tokens that are with translators now
    begun: float | None = None  # when the first of its chunks was to be tokenised
    asked: float = 0.0  # seconds of work that it has asked for
    left: float = 0.0  # those of them that have not run
    waited: float | None = None  # seconds from ``begun`` until its first row ran
    ran: float = 0.0  # seconds of the runs that it had a part in
    tokens: int = 0
    parts: set[Any] = field(default_factory=set)  # run requests of it that are under way
    gone: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def until_run(self) -> float:
        """Seconds from its arrival until its first row ran, translating included."""
        return (self.begun or self.arrived) - self.arrived + (self.waited or 0.0)


class Entry:
    """A request that the door let through, until its task has begun."""

    def __init__(self, counts: Counter[str], client: str) -> None:
        self._counts, self._client = counts, client
        counts[client] += 1

    def ends(self) -> None:
        self._counts[self._client] -= 1
        if not self._counts[self._client]:
            del self._counts[self._client]


class Demand(TypedDict, total=False):
    """What a request will need beside its bytes, and for whom. ``elsewhere``: it goes to translators
    first; work there delays only requests that need translation, too. ``small``: only tokenising is
    needed, which the event loop may do, of a few short ``items``. ``text``: bytes to be tokenised, where
    these are others than those that run. ``drawn``: tokens that it may run; ``retokenised``: what it draws is
    text."""

    generators: int
    rows: int
    items: int
    most: int | None
    elsewhere: bool
    small: bool
    client: str
    text: int | None
    drawn: int | None
    retokenised: bool


class _Own(NamedTuple):
    """So many alike requests of a client; in seconds of work but for ``arrived``."""

    arrived: float
    done: float
    left: float
    row: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The requests of one client, and what each other has left."""

    own: list[_Own]
    others: list[float]

    def ahead(self, until: float) -> float:
        """Seconds of work that the client has made wait: its own, and of each other at most as much."""
        own = self._own(until)
        return own + sum(min(left, own) for left in self.others)

    def among(self, until: float, work: float) -> float:
        """Seconds until a request of so many would be through by fair shares, without its own."""
        own = self._own(until)
        return own + sum(min(left, own + work) for left in self.others)

    def _own(self, until: float) -> float:
        """Of each request what is due by then, and its next row."""
        found = 0.0
        for arrived, done, left, row, times in self.own:
            due = max(0.0, (until - arrived) / PATIENCE - done)
            found += times * min(left, due + row)
        return found


class Admission:
    """Requests that were let in and have not left. ``speed``: tokens a second of the fastest graph;
    ``queued``: tokens that wait for a run, of all or of one client; ``evict`` ends requests."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float],
        lock: AbstractContextManager[Any],
        speed: Callable[[], float],
        queued: Callable[[str | None], int],
        evict: Callable[[Sequence[Ticket]], None],
    ) -> None:
        self.limits, self.clock, self.open = limits, clock, True
        self.inside: set[Ticket] = set()
        self.guessed = 0  # tokens of requests that were let in and not tokenised yet
        self._loads: dict[str, Overload] = {}
        self._entering: Counter[str] = Counter()
        self._beat = (math.inf, 0.0)  # when the event loop was seen last, and how late
        self._lock, self._speed, self._queued, self._evict = lock, speed, queued, evict
        self._pace = PACE  # seconds that preparing takes for a byte of text

    def admit(
        self,
        size: int,
        timeout: float | None = None,
        generators: int = 1,
        rows: int = 1,
        items: int = 1,
        elsewhere: bool = False,
        small: bool = False,
        client: str = "",
        most: int | None = None,
        text: int | None = None,
        drawn: int | None = None,
        retokenised: bool = False,
    ) -> Ticket:
        """See ``Scheduler.admit``."""
        guess = size // BYTES_PER_TOKEN + 1
        text = size if text is None else text
        whole = text + PER_ITEM * items + PER_CHUNK * generators
        if not self.open:
            raise Closed("", "the service is shutting down", "send the request again")
        self._refuse(client, self._seconds(guess, whole), max(1, rows), elsewhere, timeout)
        share = guess // generators
        if self._too_many(client, share):
            self._load(client).refused(self.clock())
            raise Busy(ahead := self.ahead(0.0, client), ahead / 2)
        ticket = Ticket(
            self.clock(),
            guess,
            max(1, rows),
            share,
            whole / guess,
            whole // generators,
            elsewhere,
            small and items <= FEW and text <= BYTES_PER_TOKEN * SMALL,
            client,
            most,
            drawn,
            retokenised,
        )
        if not elsewhere:  # to wait for a translator is no sign of a flood
            self._load(client).let_in(ticket.arrived)
        self.guessed += guess
        self.inside.add(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        ticket.gone = True
        self.inside.discard(ticket)
        if ticket.evicted is None and not ticket.elsewhere:
            self._load(ticket.client).answered(self.clock(), ticket.asked, ticket.rows)
        self.settle(ticket, ticket.guess)

    def settle(self, ticket: Ticket, tokens: int) -> None:
        """A cost is known, or of no interest any more: the guess at it is taken back."""
        self.guessed -= tokens
        ticket.guess -= tokens

    def prepared(self, ticket: Ticket, seconds: float) -> None:
        """A chunk was tokenised in so many seconds; of one with drawn texts only the first of them."""
        if not ticket.retokenised:
            self._pace += 0.05 * (seconds / ticket.piece - self._pace)
        self.settle(ticket, min(ticket.share, ticket.guess))

    def lagged(self, seconds: float) -> None:
        """The event loop's heart beat just now, so late. The one thing that needs no lock."""
        self._beat = self.clock(), seconds

    def lag(self, now: float) -> float:
        """How late the event loop is, in the middle of a round too."""
        seen, late = self._beat
        return max(late, now - seen - BEAT)

    def ahead(self, work: float, client: str = "", elsewhere: bool = False) -> float:
        """Seconds of work that its client has in front of a request of so many seconds."""
        return self._look(client, elsewhere).ahead(self.clock() + work)

    def _look(self, client: str, elsewhere: bool = False, door: bool = False) -> _Waiting:
        """``door``: as a request sees it that comes behind those who are on their way in, of whom nobody
        knows more than what is typical of their clients."""
        cost, pace = 1 / self._speed(), self._pace
        own, others = list[_Own](), dict[str, float]()
        if door and (count := self._entering.get(client, 0)):
            load = self._load(client)
            own.append(_Own(self.clock(), 0.0, load.typical, load.typical_row, count))
        for ticket in self.inside:
            if ticket.evicted is not None:
                continue
            here = ticket.guess if elsewhere else max(0, ticket.guess - ticket.away)
            left = ticket.left + here * (cost + pace * ticket.text)
            if (
                ticket.drawn is not None
            ):  # a vote is held to be half over: nobody knows when it will be
                left = max(left, ticket.asked - ticket.left)
            if ticket.client == client:
                done = ticket.asked - ticket.left
                own.append(_Own(ticket.arrived, done, left, (done + left) / ticket.rows))
            else:
                others[ticket.client] = others.get(ticket.client, 0.0) + left
        if door and own:  # without any of its own, others are not in its way
            for other, count in self._entering.items():
                if other != client:
                    others[other] = others.get(other, 0.0) + count * self._load(other).typical
        return _Waiting(own, list(others.values()))

    def refuse_if_full(self, client: str = "", size: int = 0) -> None:
        """``Busy`` where a request of so many bytes, which came just now, would not be let in."""
        self._load(client).comes(self._beat[0])
        self._refuse(client, self._seconds(size // BYTES_PER_TOKEN, size), door=True)

    def enters(self, client: str) -> Entry:
        """It was not refused, and will be looked at later in this round of the event loop or the next."""
        return Entry(self._entering, client)

    def _refuse(
        self,
        client: str,
        work: float,
        rows: int = 1,
        elsewhere: bool = False,
        timeout: float | None = None,
        door: bool = False,
    ) -> None:
        """``Busy`` for a request that would wait longer than it may."""
        load, now = self._load(client), self.clock()
        lag, waiting = self.lag(now), self._look(client, door=door)
        if load.begins(now, waiting.ahead(now + PATIENCE * load.typical), lag):
            self._shed(client, load)
            waiting = self._look(client, door=door)
        if elsewhere:
            waiting = self._look(client, elsewhere)
        # By the time that its last row is due, so much of the others' will have run.
        ahead = waiting.ahead(now + PATIENCE * work)
        among = waiting.among(now + PATIENCE * work, work)
        waits = max(ahead, lag) if load.shedding or lag > TOO_LATE else ahead
        longest = self.limits.wait if elsewhere else load.longest(work, rows)
        shared = load.in_company(work, rows)
        if timeout is not None:
            longest, shared = min(longest, timeout), min(shared, timeout)
        if waits > longest:
            load.refused(now)
            raise Busy(waits, ahead - longest / 2)
        if among > shared:
            load.refused(now)
            raise Busy(among, among - shared / 2)

    def _too_many(self, client: str, tokens: int) -> bool:
        """Whether more tokens would wait than may, and this client has its share of them."""
        queued = self._queued(None)
        if not queued or queued + tokens <= self.limits.tokens:
            return False
        clients = len({ticket.client for ticket in self.inside} | {client})
        return self._queued(client) + tokens > self.limits.tokens // clients

    def _shed(self, client: str, load: Overload) -> None:
        """Refuse what waits already and could not be answered in time any more: it would be late, and
        make those late that can."""
        now, ahead, late = self.clock(), 0.0, list[Ticket]()
        waiting = [t for t in self.inside if t.client == client and not t.elsewhere]
        guessed = {t: self._seconds(t.guess, t.guess * t.text) for t in waiting}
        work = {ticket: ticket.asked + guessed[ticket] for ticket in waiting}
        for ticket in sorted(waiting, key=lambda t: t.arrived + PATIENCE * work[t]):
            left = ticket.left + guessed[ticket]
            longest = work[ticket] + load.longest(work[ticket])
            if ticket.waited is None and now + ahead + left - ticket.arrived > longest:
                ticket.evicted = Busy(ahead, ahead)
                load.evicted()
                late.append(ticket)
            else:
                ahead += left
        if late:
            self._evict(late)

    def _load(self, client: str) -> Overload:
        if client not in self._loads and len(self._loads) >= CLIENTS:
            here = {ticket.client for ticket in self.inside}
            oldest = sorted(self._loads.items(), key=lambda entry: entry[1].seen)
            for name, _ in oldest[: CLIENTS // 2]:
                if name not in here:
                    del self._loads[name]
        return self._loads.setdefault(client, Overload(self.limits.wait))

    def _seconds(self, tokens: float, text: float) -> float:
        """What it takes to run so many tokens and to prepare so many bytes."""
        return tokens / self._speed() + text * self._pace
