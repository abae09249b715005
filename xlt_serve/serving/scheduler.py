"""The live queue: many predictions at once, their rows in common batches.

Every request is a generator of run requests (see ``steps``). Three kinds of threads serve them all.
*Prepare* threads begin the generators, which tokenises. *Run* threads take batches from the rows that
wait. A *finish* thread goes on with what has run, to the answers; but the next texts that a vote draws are
to be tokenised, so the *prepare* threads go on with those. So tokenising and running overlap.
A row that comes alone runs at once; rows that come while all run threads are busy wait for the next run.

There are as many run threads as ``streams``, on a CPU one for each core. If fewer rows wait than there
are cores, one run uses all cores. If more wait, each core runs a batch of its own: with two cores such a
run takes twice as long, but no core waits for the other at every operator.

Clients take turns (``fairness``). The rows of one client run in the order of their due times. A row is
due when it was asked for, plus twice the time that the earlier rows of its request take. So a long
request does not hold up short ones. Nothing that comes later than a row's due time gets in front of it,
so no row waits forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, Unpack
from weakref import WeakKeyDictionary

from xlt_serve.errors import XltError
from xlt_serve.runtime.runners import Runner, Runners
from xlt_serve.runtime.steps import (
    Outputs,
    Row,
    RowOutputs,
    RunRequest,
    Steps,
    TranslateRequest,
    join,
)
from xlt_serve.serving.admission import (
    PATIENCE,
    SMALL,
    Admission,
    Demand,
    Entry,
    Limits,
    Ticket,
    too_many_draws,
)
from xlt_serve.serving.fairness import Shares
from xlt_serve.serving.queue import Waiting
from xlt_serve.text.tokens import too_many_windows
from xlt_serve.types import Outcome

T = TypeVar("T")
Translate: TypeAlias = Callable[[TranslateRequest], Awaitable[list[Outcome]]]


class RunFailed(XltError):
    """A row that the model can't run; its neighbours ran without it."""

    code = "run_failed"


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
class _Part:
    """A run request on its way through the queue."""

    ticket: Ticket
    rows: Sequence[Row]
    done: Callable[[RowOutputs | BaseException], None]
    left: int
    work: float = 0.0  # seconds of it that have not run
    outputs: list[tuple[list[int], Outputs]] = field(default_factory=list)
    failed: bool = False

    @property
    def dead(self) -> bool:
        return self.failed or self.ticket.gone or self.ticket.evicted is not None

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
        self.on_run, self.clock = on_run, clock
        self.streams = streams
        self._running = 0  # runs under way
        self._whole = False  # one of them has all the cores
        # Weak: what a bundle's graphs had here goes with the bundle.
        self._lanes: WeakKeyDictionary[Runners, dict[str, _Lane]] = WeakKeyDictionary()
        self._fastest = 0.0  # tokens a second; asked for by every request, also by those refused
        self._changed = threading.Condition()
        self._admission = Admission(
            limits or Limits(),
            clock,
            self._changed,
            self._speed,
            self._queued_tokens,
            self._evict,
        )
        self._shares = Shares()
        self._prepare = ThreadPoolExecutor(threads, thread_name_prefix="prepare")
        self._finish = ThreadPoolExecutor(1, thread_name_prefix="finish")
        self._runs = [
            threading.Thread(target=self._work, name=f"run-{number}", daemon=True)
            for number in range(streams)
        ]
        for thread in self._runs:
            thread.start()

    @property
    def limits(self) -> Limits:
        return self._admission.limits

    # Who comes in and goes.

    def waiting_tokens(self) -> int:
        with self._changed:
            return self._admission.guessed + self._queued_tokens()

    def waiting_seconds(self, work: float = 0.0, client: str = "") -> float:
        """How long a request of so many seconds of ``work`` would wait, by the speeds that were seen."""
        with self._changed:
            return self._admission.ahead(work, client)

    def refuse_if_full(self, client: str = "", size: int = 0) -> None:
        """``Busy`` where a request of so many bytes would not be let in: worth knowing before a body
        is read."""
        with self._changed:
            self._admission.refuse_if_full(client, size)

    def enters(self, client: str) -> Entry:
        """One that was not refused is on its way to ``admit``."""
        with self._changed:
            return self._admission.enters(client)

    def admit(self, size: int, timeout: float | None = None, **demand: Unpack[Demand]) -> Ticket:
        """A ticket for a request of ``size`` bytes of text in so many generators and rows, or ``Busy``.

        What counts is the work in front of it, not its own: a request of any size gets in when nothing
        of its client waits, and a short one beside a long one, whose later rows run after it.
        """
        with self._changed:
            return self._admission.admit(size, timeout, **demand)

    def lagged(self, seconds: float) -> None:
        """The event loop is so late, it was found just now."""
        self._admission.lagged(seconds)

    def leave(self, ticket: Ticket) -> None:
        """The request is over, or its client is gone: nothing more of it runs."""
        with self._changed:
            if ticket.gone:
                return
            self._admission.leave(ticket)
            if ticket.parts:
                self._drop_dead()
            if not self._admission.inside:
                self._shares.clear()
            if not self._admission.open:
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
        size = rows = tokens = 0  # tokens of the last run; rows and tokens of all
        prepared: float | None = 0.0  # seconds of preparing; None once rows have run
        ready = self.clock()  # when it was to be tokenised, after its translation
        with contextlib.ExitStack() as away:
            if ticket.elsewhere:
                away.enter_context(self.elsewhere(ticket))
            while True:
                # What has run is finished before what has just come is begun; but drawn texts are begun.
                over = prepared is None and not ticket.retokenised
                pool = self._finish if over else self._prepare
                if ticket.small and size <= SMALL:
                    step, seconds = _advance(steps, value)
                else:
                    async with ticket.turn:  # one request takes one thread, however long it is
                        step, seconds = await loop.run_in_executor(pool, _advance, steps, value)
                if isinstance(step, TranslateRequest):
                    assert translate is not None
                    value, meanwhile = await self._translated(ticket, step, translate)
                    prepared, ready = (prepared or 0.0) + seconds + meanwhile, self.clock()
                    away.close()
                    continue
                if prepared is not None:
                    away.close()
                    self._is_prepared(ticket, ready, prepared + seconds)
                    prepared = None
                if isinstance(step, _Done):
                    answer: T = step.value
                    return answer
                if not self._known(runners, step.graph):  # graphs open here, not while runs wait
                    await loop.run_in_executor(pool, self.open, runners, step.graph)
                size = sum(row.length for row in step.rows)
                rows, tokens = rows + len(step.rows), tokens + size
                try:
                    value = await self._rows(ticket, step, runners)
                except RunFailed:
                    self._take_back(ticket, rows, tokens)
                    raise

    def _take_back(self, ticket: Ticket, rows: int, tokens: int) -> None:
        """Steps that failed are begun again, in parts: what they have asked for is not asked for twice."""
        with self._changed:
            ticket.pushed -= rows
            ticket.tokens -= tokens

    def _is_prepared(self, ticket: Ticket, ready: float, seconds: float) -> None:
        """A chunk is tokenised, which it could be from ``ready`` on."""
        with self._changed:
            if ticket.begun is None:
                ticket.begun = ready
            self._admission.prepared(ticket, seconds)

    async def _translated(
        self, ticket: Ticket, request: TranslateRequest, translate: Translate
    ) -> tuple[list[Outcome], float]:
        """The outcomes, and the seconds of what was done meanwhile."""
        loop = asyncio.get_running_loop()
        translating = asyncio.ensure_future(translate(request))
        try:
            async with ticket.turn:
                seconds = await loop.run_in_executor(self._prepare, _timed, request.meanwhile)
            return await translating, seconds
        finally:
            translating.cancel()  # where nobody waits for it any more; else it is done

    async def _rows(self, ticket: Ticket, request: RunRequest, runners: Runners) -> RowOutputs:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[RowOutputs] = loop.create_future()

        def resolve(result: RowOutputs | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        def done(result: RowOutputs | BaseException) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(resolve, result)

        part = _Part(ticket, request.rows, done, len(request.rows))
        if not request.rows:
            return RowOutputs({})
        with self._changed:
            if ticket.evicted is not None:
                raise ticket.evicted
            ticket.pushed += len(request.rows)
            if ticket.most is not None and ticket.pushed > ticket.most:
                raise too_many_windows(ticket.pushed, ticket.most)
            tokens = ticket.tokens + sum(row.length for row in request.rows)
            if ticket.drawn is not None and tokens > ticket.drawn:
                raise too_many_draws(tokens, ticket.drawn)
            lane = self._lane(runners, request.graph)
            if not self._queued_tokens(ticket.client):
                self._shares.comes(ticket.client)
            ticket.parts.add(part)
            ticket.rows = max(ticket.rows, ticket.pushed)  # a guess until now
            now = self.clock()
            for number, row in enumerate(request.rows):
                due = max(now, ticket.arrived + PATIENCE * ticket.asked)
                lane.waiting.push(row.length, due, (part, number), ticket.client)
                work = row.length / lane.speed
                ticket.asked, ticket.left = ticket.asked + work, ticket.left + work
                ticket.tokens += row.length
                part.work += work
            # A machine may have a hundred streams: wake no crowd.
            self._changed.notify(len(request.rows))
        return await future

    # The run threads.

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._whole or not any(lane.waiting.tokens for lane in self._all()):
                    if not self._admission.open and not self._admission.inside:
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
        used = self._shares.used
        lanes = [lane for lane in self._all() if lane.waiting.tokens]
        lane = min(lanes, key=lambda lane: lane.waiting.first(used))
        idle = self.streams - self._running
        few = idle == self.streams and sum(len(each.waiting) for each in lanes) < self.streams
        budget = lane.budget(self.limits, 1 if few else self.streams)
        if idle > 1 and not few:  # one must not take all while the others have nothing to do
            budget = min(budget, -(-lane.waiting.tokens // idle))
        waiting = {client for each in lanes for client in each.waiting.clients()}
        self._shares.serves(lane.waiting.first(used)[2], waiting)
        batch = lane.waiting.take(budget, used, 1 / lane.speed)
        for part, number in batch:
            self._shares.had(part.ticket.client, part.rows[number].length / lane.speed)
        return lane, batch, few or self.streams == 1

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
                self._fastest = max(one.speed for one in self._all() or [lane])
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
                    part.ticket.parts.discard(part)
                    whole.append(part)
        for part in whole:
            part.done(join(part.outputs, len(part.rows)))

    def _fail(self, part: _Part, error: Exception) -> None:
        failure = RunFailed("an item", f"could not be run ({type(error).__name__})")
        failure.__cause__ = error
        self._end({part: failure})

    def _evict(self, tickets: Sequence[Ticket]) -> None:
        """What of them waits does not run any more; what is being tokenised finds out by itself."""
        self._end({part: t.evicted for t in tickets if t.evicted for part in t.parts})

    def _end(self, failures: Mapping[_Part, XltError]) -> None:
        """All at once: to look through what waits takes as long for one as for a thousand."""
        with self._changed:
            ended = [part for part in failures if not part.failed]
            for part in ended:
                part.failed = True
                part.did(1.0)
                part.ticket.parts.discard(part)
            self._drop_dead()
        for part in ended:
            part.done(failures[part])

    def _drop_dead(self) -> None:
        for lane in self._all():
            lane.waiting.drop(lambda entry: entry[0].dead)

    @property
    def alive(self) -> bool:
        """Whether rows still run: where the threads have died, every request would wait in vain."""
        return all(thread.is_alive() for thread in self._runs)

    def close(self) -> None:
        """Take no more requests, wait until those that are in have left, end the threads."""
        with self._changed:
            self._admission.open = False
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
            lanes[graph] = _Lane(graph, runner, single_threaded, runners.budget, self._speed())
            self._fastest = self._speed()
        return lanes[graph]

    def _queued_tokens(self, client: str | None = None) -> int:
        """Of one client, or of all."""
        if client is None:
            return sum(lane.waiting.tokens for lane in self._all())
        return sum(lane.waiting.tokens_of(client) for lane in self._all())

    def _speed(self) -> float:
        """Of the fastest graph, in tokens a second."""
        return self._fastest or self.limits.speed

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


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
