"""The live queue: many predictions at once, their rows in common batches.

Every request is a generator of asks (see ``steps``). Three kinds of threads serve them all: *prepare*
threads begin the generators (tokenising), *run* threads take batches from the rows that wait, a
*finish* thread goes on with what has run (votes, answers); so tokenising and running overlap. A lone
row runs at once; rows that come while all run threads are busy wait for the next run.

There are as many run threads as ``streams``, on a CPU one for each core. Where rows are fewer than
these, one run has all the cores; where they are more, each core has a run of its own, which takes twice
as long on two cores and wastes nothing on waiting for the other at every operator.

Which rows are next: each has a time at which it is due, namely when it was asked for, later by twice
the time that the earlier rows of its request take. So a long request does not hold up short ones, and
since nothing that comes after a row's time gets in front of it, no row waits forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from xlt_serve.errors import XltError
from xlt_serve.runtime.runners import Runner, Runners
from xlt_serve.runtime.steps import Outputs, Row, RunRequest, Steps, TranslateRequest, join
from xlt_serve.serving.load_shedding import Overload
from xlt_serve.serving.queue import Waiting
from xlt_serve.types import Outcome

T = TypeVar("T")
Translate: TypeAlias = Callable[[TranslateRequest], Awaitable[list[Outcome]]]

BYTES_PER_TOKEN = 3
"""A guess at what a text costs before it is tokenised; most scripts have more."""


PATIENCE = 2.0
"""How much later than its work alone would take a long request's rows are due: a run is not all that a
row costs, and what falls behind its times gets in front of newcomers."""


BEAT = 0.01
"""Seconds from one look at the event loop to the next, while there is a flood."""

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


class RunFailed(XltError):
    """A row that the model can't run; its neighbours ran without it."""

    code = "run_failed"


class Closed(XltError):
    code = "shutting_down"


@dataclass(frozen=True, slots=True)
class Limits:
    """``tokens`` and ``wait`` (seconds) bound what waits, ``calm`` as in ``flood``. ``slice`` is how
    long a run should take at most, so that the next request does not wait longer for its turn, if that
    leaves ``least`` tokens in a run; ``speed`` is the first guess at tokens per second."""

    tokens: int = 500_000
    wait: float = 2.0
    calm: float = 1.0
    slice: float = 0.1
    least: int = 128
    speed: float = 2000.0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What one run was, for metrics. ``error``: it failed and was repeated in parts."""

    graph: str
    rows: int
    tokens: int
    padded: int
    seconds: float
    error: bool = False


@dataclass(eq=False, slots=True)
class Ticket:
    """A request that was let in: until it leaves, its rows wait and run."""

    arrived: float
    guess: int  # tokens that it is held to cost until it is tokenised
    rows: int = 1  # how many it will have, more or less
    share: int = 0  # of the guess, for each of its chunks
    small: bool = False  # so that the event loop prepares and finishes it
    away: int = 0  # of the guess, for chunks that others have work with
    begun: float | None = None  # when the first of its chunks was to be tokenised
    asked: float = 0.0  # seconds of work that it has asked for
    left: float = 0.0  # those of them that have not run
    waited: float | None = None  # seconds from then until its first row ran
    ran: float = 0.0  # seconds of the runs that it had a part in
    tokens: int = 0
    parts: int = 0  # asks of it that are under way
    gone: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def until_run(self) -> float:
        """Seconds from its arrival until its first row ran, translating included."""
        return (self.begun or self.arrived) - self.arrived + (self.waited or 0.0)


@dataclass(eq=False, slots=True)
class _Part:
    """An ask on its way through the queue."""

    ticket: Ticket
    rows: Sequence[Row]
    done: Callable[[Outputs | BaseException], None]
    left: int
    work: float = 0.0  # seconds of it that have not run
    outputs: list[tuple[list[int], Outputs]] = field(default_factory=list)
    failed: bool = False

    @property
    def dead(self) -> bool:
        return self.failed or self.ticket.gone

    def did(self, share: float) -> None:
        """A share of what was left has run, or will not."""
        self.ticket.left -= share * self.work
        self.work -= share * self.work


_Entry: TypeAlias = tuple[_Part, int]


class _Lane:
    """The rows that wait for one graph, and how fast all streams together run it, in tokens a second."""

    def __init__(
        self, graph: str, runner: Runner, single_threaded: Runner, budget: int, speed: float
    ) -> None:
        self.graph, self.runner, self.single_threaded = graph, runner, single_threaded
        self.most, self.speed = budget, speed
        self.waiting: Waiting[_Entry] = Waiting()
        self._measured = False

    def budget(self, limits: Limits, streams: int) -> int:
        """The most padded tokens of one of so many runs at once."""
        at_once = int(self.speed / streams * limits.slice)
        return max(1, min(self.most, max(limits.least, at_once)))

    def learn(self, padded: int, seconds: float) -> None:
        """A running mean of the speed; the first run counts whole."""
        found = padded / max(seconds, 1e-6)
        self.speed = 0.9 * self.speed + 0.1 * found if self._measured else found
        self._measured = True


class Scheduler:
    """One per worker process. Its coroutines belong to one event loop, all else to any thread."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        threads: int = 2,
        streams: int = 1,
        on_run: Callable[[RunRecord], None] = lambda run: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits, self.on_run, self.clock = limits or Limits(), on_run, clock
        self.streams = streams
        self._running = 0  # runs under way
        self._whole = False  # one of them has all the cores
        # Weak: what a bundle's graphs had here goes with the bundle.
        self._lanes: WeakKeyDictionary[Runners, dict[str, _Lane]] = WeakKeyDictionary()
        self._guessed = 0  # tokens of requests that were let in and not tokenised yet
        self._inside: set[Ticket] = set()  # requests that were let in and have not left
        self._open = True
        self._changed = threading.Condition()
        self._overload = Overload(self.limits.wait, self.limits.calm)
        self._typical = 0.0  # seconds of work of a request
        self._pace = 0.0  # seconds that a prepare thread takes for a guessed token
        self._prepare = ThreadPoolExecutor(threads, thread_name_prefix="prepare")
        self._finish = ThreadPoolExecutor(1, thread_name_prefix="finish")
        self._runs = [
            threading.Thread(target=self._work, name=f"run-{number}", daemon=True)
            for number in range(streams)
        ]
        for thread in self._runs:
            thread.start()

    # Who comes in and goes.

    def waiting_tokens(self) -> int:
        with self._changed:
            return self._waiting_tokens()

    def waiting_seconds(self, work: float = 0.0) -> float:
        """How long a request of so many seconds of ``work`` would wait, by the speeds that were seen."""
        with self._changed:
            return self._ahead(work)

    def refuse_if_full(self) -> None:
        """``Busy`` where nobody would be let in: worth knowing before a body is read."""
        with self._changed:
            self._refuse_over(self._ahead(self._typical))

    def admit(
        self,
        size: int,
        timeout: float | None = None,
        generators: int = 1,
        rows: int = 1,
        elsewhere: bool = False,
        small: bool = False,
    ) -> Ticket:
        """A ticket for a request of ``size`` bytes of text in so many generators and rows, or ``Busy``.

        What counts is the work in front of it, not its own: a request of any size gets in when nothing
        waits, and a short one beside a long one, whose later rows run after it. What is ``elsewhere``
        stands in the way of those alone that are to go there too. ``small``: nothing but this text has
        to be prepared, so that the event loop may do it.
        """
        guess = size // BYTES_PER_TOKEN + 1
        with self._changed:
            if not self._open:
                raise Closed("", "the service is shutting down", "send the request again")
            ahead = self._ahead(guess * self._cost(), elsewhere)
            queued = self._queued_tokens()
            self._refuse_over(self._ahead(self._typical))
            longest = self.limits.wait if timeout is None else min(self.limits.wait, timeout)
            # This one's own affair: a long request, or one that is to be translated.
            if ahead > longest or (queued and queued + guess // generators > self.limits.tokens):
                raise Busy(ahead, ahead - longest / 2)
            self._overload.let_in()
            share = guess // generators
            small = small and share <= SMALL
            ticket = Ticket(self.clock(), guess, max(1, rows), share, small)
            self._guessed += guess
            self._inside.add(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """The request is over, or its client is gone: nothing more of it runs."""
        with self._changed:
            if ticket.gone:
                return
            ticket.gone = True
            self._inside.discard(ticket)
            self._typical += 0.05 * (ticket.asked - self._typical)
            self._settle(ticket, ticket.guess)
            if ticket.parts:
                for lane in self._all():
                    lane.waiting.drop(lambda entry: entry[0].dead)
            if not self._open:
                self._changed.notify_all()

    @contextlib.contextmanager
    def elsewhere(self, ticket: Ticket) -> Iterator[None]:
        """While translators work on a chunk, it is no work that waits here."""
        with self._changed:
            ticket.away += ticket.share
        try:
            yield
        finally:
            with self._changed:
                ticket.away -= ticket.share

    # A request's way through the threads.

    async def predict(
        self,
        ticket: Ticket,
        steps: Steps[T],
        runners: Runners,
        translate: Translate | None = None,
    ) -> T:
        """The answer of ``steps``, its rows run among those of all others."""
        loop = asyncio.get_running_loop()
        value: Any = None
        size = 0  # tokens of the last run
        prepared: float | None = 0.0  # seconds of preparing; None once rows have run
        ready = self.clock()  # when it was to be tokenised, after its translation
        while True:
            # What has run is finished before what has just come is begun.
            pool = self._finish if prepared is None else self._prepare
            if ticket.small and size <= SMALL:
                step, seconds = _advance(steps, value)
            else:
                async with ticket.turn:  # one request takes one thread, however long it is
                    step, seconds = await loop.run_in_executor(pool, _advance, steps, value)
            if isinstance(step, TranslateRequest):
                assert translate is not None
                value = await self._translated(ticket, step, translate)
                prepared, ready = seconds + (prepared or 0.0), self.clock()
                continue
            if ticket.begun is None:
                ticket.begun = ready
            if prepared is not None:
                with self._changed:
                    pace = (prepared + seconds) / (ticket.share + 1)
                    self._pace += 0.05 * (pace - self._pace)
                    self._settle(ticket, min(ticket.share, ticket.guess))
                prepared = None
            if isinstance(step, _Done):
                answer: T = step.value
                return answer
            if not self._known(runners, step.graph):  # graphs open here, not while runs wait
                await loop.run_in_executor(pool, self.open, runners, step.graph)
            size = sum(row.length for row in step.rows)
            value = await self._rows(ticket, step, runners)

    async def _translated(
        self, ticket: Ticket, request: TranslateRequest, translate: Translate
    ) -> list[Outcome]:
        loop = asyncio.get_running_loop()
        with self.elsewhere(ticket):
            translating = asyncio.ensure_future(translate(request))
            try:
                async with ticket.turn:
                    await loop.run_in_executor(self._prepare, request.meanwhile)
                return await translating
            finally:
                translating.cancel()  # where nobody waits for it any more; else it is done

    async def _rows(self, ticket: Ticket, ask: RunRequest, runners: Runners) -> Outputs:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outputs] = loop.create_future()

        def resolve(result: Outputs | BaseException, ready: float) -> None:
            now = self.clock()
            self._overload.lagged(now, now - ready)
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        def done(result: Outputs | BaseException) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(resolve, result, self.clock())

        part = _Part(ticket, ask.rows, done, len(ask.rows))
        if not ask.rows:
            return {}
        with self._changed:
            lane = self._lane(runners, ask.graph)
            ticket.parts += 1
            now = self.clock()
            for number, row in enumerate(ask.rows):
                due = max(now, ticket.arrived + PATIENCE * ticket.asked)
                lane.waiting.push(row.length, due, (part, number))
                work = row.length / lane.speed
                ticket.asked, ticket.left = ticket.asked + work, ticket.left + work
                ticket.tokens += row.length
                part.work += work
            # A machine may have a hundred streams: wake no crowd.
            self._changed.notify(len(ask.rows))
        return await future

    # The run threads.

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._whole or not any(lane.waiting.tokens for lane in self._all()):
                    if not self._open and not self._inside:
                        return
                    self._changed.wait()
                lane, batch, whole = self._next()
                self._running += 1
                self._whole = whole
            try:
                self._run(lane, batch, whole)
            except Exception as error:  # of ours, not of the model: nobody may wait for ever
                for part in {id(part): part for part, _ in batch}.values():
                    if not part.dead and part.left:
                        self._fail(part, error)
            finally:
                with self._changed:
                    self._running -= 1
                    if whole:
                        self._whole = False
                        self._changed.notify(sum(len(each.waiting) for each in self._all()))
            del lane, batch  # or an idle queue would keep a bundle that was swapped out

    def _next(self) -> tuple[_Lane, list[_Entry], bool]:
        """The rows that run next, and whether on all cores. With the lock held."""
        lanes = [lane for lane in self._all() if lane.waiting.tokens]
        lane = min(lanes, key=lambda lane: lane.waiting.first())
        idle = self.streams - self._running
        if idle == self.streams and sum(len(each.waiting) for each in lanes) < self.streams:
            return lane, lane.waiting.take(lane.budget(self.limits, 1)), True
        budget = lane.budget(self.limits, self.streams)
        if idle > 1:  # one must not take all while the others have nothing to do
            budget = min(budget, -(-lane.waiting.tokens // idle))
        return lane, lane.waiting.take(budget), self.streams == 1

    def _run(self, lane: _Lane, batch: list[_Entry], whole: bool) -> None:
        """Run a batch; if it fails, its halves, until the row that made it fail is alone."""
        batch = [entry for entry in batch if not entry[0].dead]
        if not batch:
            return
        rows = [part.rows[number] for part, number in batch]
        lengths = [row.length for row in rows]
        begun = self.clock()
        for part, _ in batch:
            if part.ticket.waited is None:
                part.ticket.waited = begun - (part.ticket.begun or part.ticket.arrived)
        error: Exception | None = None
        outputs: Outputs = {}
        try:
            outputs = (lane.runner if whole else lane.single_threaded).run(rows)
        except Exception as raised:  # whatever the runtime throws, the thread goes on
            error = raised
        seconds, padded = self.clock() - begun, max(lengths) * len(rows)
        if error is None:
            with self._changed:
                lane.learn(padded if whole else padded * self.streams, seconds)
            self._deliver(batch, outputs, seconds)
        elif len(batch) == 1:
            self._fail(batch[0][0], error)
        self.on_run(
            RunRecord(lane.graph, len(rows), sum(lengths), padded, seconds, error is not None)
        )
        if error is not None and len(batch) > 1:
            middle = len(batch) // 2
            self._run(lane, batch[:middle], whole)
            self._run(lane, batch[middle:], whole)

    def _deliver(self, batch: list[_Entry], outputs: Outputs, seconds: float) -> None:
        places: dict[int, tuple[_Part, list[int], list[int]]] = {}
        for place, (part, number) in enumerate(batch):
            _, numbers, here = places.setdefault(id(part), (part, [], []))
            numbers.append(number)
            here.append(place)
        tickets = {id(part.ticket): part.ticket for part, _, _ in places.values()}
        whole = []
        with self._changed:
            for ticket in tickets.values():
                ticket.ran += seconds
            for part, numbers, here in places.values():
                if part.failed:  # in another stream, while this ran
                    continue
                part.outputs.append((numbers, {name: v[here] for name, v in outputs.items()}))
                part.did(len(numbers) / part.left)
                part.left -= len(numbers)
                if not part.left:
                    part.ticket.parts -= 1
                    whole.append(part)
        for part in whole:
            part.done(join(part.outputs, len(part.rows)))

    def _fail(self, part: _Part, error: Exception) -> None:
        with self._changed:
            if part.failed:
                return
            part.failed = True
            part.did(1.0)
            part.ticket.parts -= 1
            for lane in self._all():
                lane.waiting.drop(lambda entry: entry[0] is part)
        failure = RunFailed("an item", f"could not be run ({type(error).__name__})")
        failure.__cause__ = error
        part.done(failure)

    @property
    def alive(self) -> bool:
        """Whether rows still run: where the threads have died, every request would wait in vain."""
        return all(thread.is_alive() for thread in self._runs)

    def close(self) -> None:
        """Take no more requests, wait until those that are in have left, end the threads."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
        for thread in self._runs:
            thread.join()
        self._prepare.shutdown()
        self._finish.shutdown()

    # With the lock held.

    def _all(self) -> list[_Lane]:
        return [lane for lanes in self._lanes.values() for lane in lanes.values()]

    def _lane(self, runners: Runners, graph: str) -> _Lane:
        lanes = self._lanes.setdefault(runners, {})
        if graph not in lanes:
            runner, single_threaded = self.open(runners, graph)
            # As fast as others, until it is known: after a swap a slow guess would refuse everybody.
            speed = max((lane.speed for lane in self._all()), default=self.limits.speed)
            lanes[graph] = _Lane(graph, runner, single_threaded, runners.budget, speed)
        return lanes[graph]

    def _waiting_tokens(self) -> int:
        return self._guessed + sum(lane.waiting.tokens for lane in self._all())

    def _queued_tokens(self) -> int:
        return sum(lane.waiting.tokens for lane in self._all())

    def _cost(self) -> float:
        """Seconds that a guessed token takes."""
        speed = max((lane.speed for lane in self._all()), default=self.limits.speed)
        return 1 / speed + self._pace

    def _ahead(self, work: float, elsewhere: bool = False) -> float:
        """Seconds of others' work that runs before a request of so many seconds is through: of each
        of them what is due by then, and its next row; ``elsewhere``: also what is not here yet."""
        now, cost = self.clock(), self._cost()
        total = 0.0
        for ticket in self._inside:
            here = ticket.guess if elsewhere else max(0, ticket.guess - ticket.away)
            left = ticket.left + here * cost
            done = ticket.asked - ticket.left
            due = max(0.0, (now + work - ticket.arrived) / PATIENCE - done)
            total += min(left, due + (done + left) / ticket.rows)
        return total

    def _refuse_over(self, ahead: float) -> None:
        """``Busy`` where a request would wait too long, by what is too long now."""
        now = self.clock()
        before, longest = self._overload.lasts(now), self._overload.longest(now, self._typical)
        waits = self._overload.turns_away(now, ahead, self._typical)
        if waits is None:
            return
        if not before:
            self._watch()
        raise Busy(waits, ahead - longest / 2)

    def _watch(self) -> None:
        """How late the event loop is, as long as the flood lasts: while few are let in, few outcomes
        tell."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # asked from elsewhere, as tests do
            return

        def beat(due: float) -> None:
            now = self.clock()
            with self._changed:
                self._overload.lagged(now, max(0.0, now - due))
                if self._overload.lasts(now):
                    loop.call_later(BEAT, beat, now + BEAT)

        loop.call_later(BEAT, beat, self.clock() + BEAT)

    def _settle(self, ticket: Ticket, tokens: int) -> None:
        """A cost is known, or of no interest any more: the guess at it is taken back."""
        self._guessed -= tokens
        ticket.guess -= tokens

    # Without it.

    def _known(self, runners: Runners, graph: str) -> bool:
        return graph in self._lanes.get(runners, ())

    def open(self, runners: Runners, graph: str) -> tuple[Runner, Runner]:
        """The graph for a run that has all the cores, and for runs that have one each."""
        runner = runners.of(graph)
        return runner, runners.of(graph, single_threaded=True) if self.streams > 1 else runner


@dataclass(frozen=True, slots=True)
class _Done:
    value: Any


def _advance(steps: Steps[Any], value: Any) -> tuple[RunRequest | TranslateRequest | _Done, float]:
    """The next request, or that there is none, and the seconds it took."""
    begun = time.perf_counter()
    try:
        request = steps.send(value)
    except StopIteration as done:  # which no future can carry
        return _Done(done.value), time.perf_counter() - begun
    return request, time.perf_counter() - begun
