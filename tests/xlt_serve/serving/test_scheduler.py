"""The live queue, with a model that squares lengths, takes its time and chokes on poison."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from xlt_serve.classifier import load
from xlt_serve.errors import TooMuch
from xlt_serve.modes.base import Asked, Cost
from xlt_serve.modes.plain import Plain
from xlt_serve.modes.smoothed import Smoothed, Smoothing
from xlt_serve.modes.zero_shot import Candidates
from xlt_serve.runtime.steps import Outputs, RunRequest, Steps, TranslateRequest
from xlt_serve.serving import answering
from xlt_serve.serving.admission import TOO_LATE, Busy, Closed, Limits, Ticket
from xlt_serve.serving.heartbeat import BEAT
from xlt_serve.serving.load_shedding import CALM, CROWD, Overload
from xlt_serve.serving.queue import Waiting
from xlt_serve.serving.scheduler import RunFailed, RunRecord, Scheduler
from xlt_serve.types import Failure, Outcome, Prediction, Settings, Translation


@dataclass(frozen=True)
class Word:
    text: str

    @property
    def length(self) -> int:
        return len(self.text)


@dataclass
class Squares:
    """Runner of the only graph; holds every run until ``gate`` is open."""

    budget: int = 64
    seconds_per_token: float = 0.0
    gate: threading.Event = field(default_factory=threading.Event)
    batches: list[list[str]] = field(default_factory=list)
    held: bool = False

    def __post_init__(self) -> None:
        self.gate.set()

    def __hash__(self) -> int:
        return id(self)

    def of(self, graph: str, single_threaded: bool = False) -> Squares:
        return self

    def run(self, rows: Sequence[Word]) -> Outputs:
        self.held = not self.gate.is_set()
        self.gate.wait(10)
        self.batches.append([row.text for row in rows])
        time.sleep(self.seconds_per_token * max(r.length for r in rows) * len(rows))
        if any("poison" in row.text for row in rows):
            raise MemoryError("poisoned")
        return {"values": np.array([row.length**2 for row in rows])}


def squares(texts: Sequence[str], rounds: int = 1) -> Steps[list[int]]:
    values: list[int] = []
    for _ in range(rounds):
        outputs = yield RunRequest("squares", [Word(text) for text in texts])
        values += outputs["values"].tolist()
    return values


def opened(model: Squares, predictions: Callable[[Any], Steps[list[Prediction]]]) -> Any:
    """A loaded bundle of this model, whose every mode has these steps."""

    def failed(mode: str, code: str, message: str) -> Prediction:
        return Prediction(None, mode=mode, error=Failure(code, message))

    return SimpleNamespace(
        classifier=SimpleNamespace(
            runners=model,
            translators=None,
            context=SimpleNamespace(failed=failed, labels=("a", "b")),
            encoder=SimpleNamespace(max_length=512),
            steps=lambda asked: predictions(asked.items),
        )
    )


@pytest.fixture(params=[1, 3], ids=["one stream", "three streams"])
def patient(request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    """By a clock that stands, no requests are a flood, however slowly they come."""
    limits = Limits(least=64, speed=1e4, wait=2)
    made = Scheduler(limits, streams=request.param, clock=lambda: 100.0)
    yield made
    made.close()


@pytest.fixture(params=[1, 3], ids=["one stream", "three streams"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    made = Scheduler(Limits(least=64, speed=1e4, wait=2), streams=request.param)
    yield made
    made.close()


async def ask(
    scheduler: Scheduler, model: Squares, texts: Sequence[str], rounds: int = 1, client: str = ""
) -> list[int]:
    ticket = scheduler.admit(sum(map(len, texts)), rows=len(texts) if client else 1, client=client)
    try:
        return await scheduler.predict(ticket, squares(texts, rounds), model)
    finally:
        scheduler.leave(ticket)


async def hold(scheduler: Scheduler, model: Squares) -> asyncio.Task[list[int]]:
    """A request whose run does not end before the gate opens: what comes now has to wait."""
    model.gate.clear()
    task = asyncio.create_task(ask(scheduler, model, ["!"]))
    await until(lambda: model.held)
    return task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def test_many_requests_share_batches_and_each_gets_its_own_answer(patient: Scheduler) -> None:
    model, scheduler = Squares(), patient

    async def main() -> None:
        first = await hold(scheduler, model)
        requests = [["x" * (1 + (n * k) % 9) for k in range(1 + n % 4)] for n in range(40)]
        tasks = [asyncio.create_task(ask(scheduler, model, texts, 3)) for texts in requests]
        everything = sum(len(text) for texts in requests for text in texts)
        await until(lambda: scheduler.waiting_tokens() == everything)
        model.gate.set()
        for texts, got in zip(requests, await asyncio.gather(*tasks), strict=True):
            assert got == [len(text) ** 2 for text in texts] * 3
        assert await first == [1]

    asyncio.run(main())
    assert len(model.batches) < 40 * 3 / 2
    assert all(max(map(len, batch)) * len(batch) <= 64 for batch in model.batches)
    assert scheduler.waiting_tokens() == 0


def test_a_poisoned_row_fails_its_own_request_alone(scheduler: Scheduler) -> None:
    model, runs = Squares(), list[RunRecord]()
    scheduler.on_run = runs.append

    async def main() -> list[object]:
        first = await hold(scheduler, model)
        requests = [["aaaaaa"], ["bbbbbb", "poison"], ["cccccc"], ["dddddd", "eeeeee"]]
        tasks = [asyncio.create_task(ask(scheduler, model, texts)) for texts in requests]
        await until(lambda: scheduler.waiting_tokens() == 36)
        model.gate.set()
        await first
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, failed, third, fourth = asyncio.run(main())
    assert (first, third, fourth) == ([36], [36], [36, 36])
    assert isinstance(failed, RunFailed)
    assert isinstance(failed.__cause__, MemoryError)
    assert any(run.error for run in runs)
    assert scheduler.waiting_tokens() == 0


def test_a_short_request_does_not_wait_for_all_of_a_long_one(scheduler: Scheduler) -> None:
    model = Squares(seconds_per_token=1e-4)

    async def main() -> tuple[float, float]:
        begun = time.monotonic()
        long = asyncio.create_task(ask(scheduler, model, ["x" * 16] * 400))
        await until(lambda: len(model.batches) >= 2)
        await ask(scheduler, model, ["y" * 16])
        short_done = time.monotonic() - begun
        await long
        return short_done, time.monotonic() - begun

    short, long = asyncio.run(main())
    assert short < long / 2


def test_no_row_starves_among_newcomers(scheduler: Scheduler) -> None:
    """A row of odd length is due by its time, however many well-packing rows keep coming."""
    model = Squares(seconds_per_token=5e-5)

    async def main() -> float:
        stop = False

        async def client() -> None:
            while not stop:
                await ask(scheduler, model, ["x" * 8] * 8)

        clients = [asyncio.create_task(client()) for _ in range(8)]
        await until(lambda: len(model.batches) > 20)
        begun = time.monotonic()
        await ask(scheduler, model, ["z" * 60])
        waited = time.monotonic() - begun
        stop = True
        await asyncio.gather(*clients)
        return waited

    assert asyncio.run(main()) < 1


def test_a_client_that_leaves_takes_its_rows_along(scheduler: Scheduler) -> None:
    model = Squares()

    async def main() -> None:
        stays = await hold(scheduler, model)
        leaves = asyncio.create_task(ask(scheduler, model, ["leaves"] * 30))
        await until(lambda: scheduler.waiting_tokens() == 180)
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        assert scheduler.waiting_tokens() == 0
        model.gate.set()
        assert await stays == [1]

    asyncio.run(main())
    assert model.batches == [["!"]]


@pytest.mark.parametrize(
    ("limits", "retry"),
    [(Limits(tokens=1000, wait=30, speed=100), 5), (Limits(wait=10, speed=100), 1)],
    ids=["tokens", "time"],
)
def test_too_much_work_is_refused_with_a_time_to_come_back(limits: Limits, retry: int) -> None:
    scheduler = Scheduler(limits)
    model = Squares()

    async def main() -> None:
        tasks = [await hold(scheduler, model)]
        # Each waits for one second's work of every one that is there already.
        for number in range(10):
            tasks.append(asyncio.create_task(ask(scheduler, model, ["x" * 100])))
            await until(lambda number=number: scheduler.waiting_tokens() == 100 * (number + 1))
        with pytest.raises(Busy, match="try again in") as refused:
            scheduler.admit(10)
        assert refused.value.retry_after == pytest.approx(retry, abs=1)
        model.gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)  # some are refused after all
        assert scheduler.waiting_seconds() == 0
        scheduler.leave(scheduler.admit(10))

    asyncio.run(main())
    scheduler.close()
    with pytest.raises(Closed):
        scheduler.admit(1)


@pytest.mark.parametrize("streams", [1, 3])
def test_a_request_that_can_not_make_its_deadline_is_refused_at_once(streams: int) -> None:
    """By a clock that stands: else ninety requests of one client may count as a flood, and be shed."""
    limits = Limits(least=64, speed=1e4, wait=2)
    scheduler = Scheduler(limits, streams=streams, clock=lambda: 100.0)
    model = Squares()

    async def main() -> None:
        tasks = [await hold(scheduler, model)]
        for _ in range(90):
            tasks.append(asyncio.create_task(ask(scheduler, model, ["x" * 100])))
        await until(lambda: scheduler.waiting_tokens() == 9000)
        with pytest.raises(Busy):
            scheduler.admit(10, timeout=0.1)
        scheduler.leave(scheduler.admit(10, timeout=5))
        model.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    scheduler.close()


def test_what_is_being_translated_is_no_work_that_waits() -> None:
    """Else the encoder would stand still while requests that it could run at once are refused."""
    now = [0.0]
    scheduler = Scheduler(Limits(speed=10, wait=5), clock=lambda: now[0])
    model = Squares()

    async def main() -> None:
        ticket = scheduler.admit(3000, elsewhere=True)  # 1000 tokens: 100 seconds
        with pytest.raises(Busy):
            scheduler.admit(3)

        async def translate(request: TranslateRequest) -> list[Outcome]:
            assert scheduler.waiting_seconds() == 0
            scheduler.leave(scheduler.admit(3))
            with pytest.raises(Busy):  # who has to be translated, too, stands behind it
                scheduler.admit(3, elsewhere=True)
            now[0] = 7.0
            return []

        def steps() -> Steps[list[int]]:
            yield TranslateRequest([], [], "en", lambda: None)
            assert scheduler.waiting_seconds() > 5
            return (yield from squares(["x" * 3]))

        assert await scheduler.predict(ticket, steps(), model, translate) == [9]
        assert ticket.waited == 0.0  # in the queue, that is
        assert ticket.until_run == 7.0
        scheduler.leave(ticket)
        assert scheduler.waiting_seconds() == scheduler.waiting_tokens() == 0

    asyncio.run(main())
    scheduler.close()


def test_a_newcomer_waits_for_what_is_due_not_for_all_of_a_long_request() -> None:
    """With a clock of its own: 100 rows of a second each, of which a second's worth runs a second."""
    now = [0.0]
    scheduler = Scheduler(Limits(speed=10, wait=5), clock=lambda: now[0])
    model = Squares()

    async def main() -> None:
        first = await hold(scheduler, model)
        task = asyncio.create_task(ask_many())
        await until(lambda: scheduler.waiting_tokens() == 1000)
        assert scheduler.waiting_seconds() == pytest.approx(
            1.1, abs=0.2
        )  # its next row, and the first's
        assert scheduler.waiting_seconds(work=6) == pytest.approx(4.1, abs=0.2)
        scheduler.leave(scheduler.admit(3))
        now[0] = 20.0  # nothing ran: ten more rows are due, one in two seconds
        assert scheduler.waiting_seconds() == pytest.approx(11.1, abs=0.2)
        with pytest.raises(Busy):
            scheduler.admit(3)
        model.gate.set()
        await asyncio.gather(first, task)
        assert scheduler.waiting_seconds() == 0

    async def ask_many() -> list[int]:
        ticket = scheduler.admit(3000, rows=100)
        try:
            return await scheduler.predict(ticket, squares(["x" * 10] * 100), model)
        finally:
            scheduler.leave(ticket)

    asyncio.run(main())
    scheduler.close()


def test_a_failure_of_our_own_fails_the_batch_and_not_the_thread(scheduler: Scheduler) -> None:
    model = Squares()

    def broken(run: RunRecord) -> None:
        raise OSError("no space left for metrics")

    scheduler.on_run = broken
    # The answer was there before the metrics failed: it is given, and the thread lives on.
    assert asyncio.run(ask(scheduler, model, ["abc"])) == [9]
    assert scheduler.alive
    scheduler.on_run = lambda run: None
    assert asyncio.run(ask(scheduler, model, ["ab"] * 100)) == [4] * 100


def test_items_that_can_not_be_run_fail_alone_within_a_request(scheduler: Scheduler) -> None:
    model = Squares()
    texts = [f"text{n}" for n in range(50)]
    texts[7] = texts[33] = "poison"

    def predictions(part: Sequence[str]) -> Steps[list[Prediction]]:
        outputs = yield RunRequest("squares", [Word(text) for text in part])
        return [Prediction(str(value)) for value in outputs["values"]]

    loaded = opened(model, predictions)
    done = asyncio.run(answering.answer(scheduler, loaded, Asked(texts, Settings()), 10))
    assert [p.label for p in done.predictions] == [
        None if text == "poison" else str(len(text) ** 2) for text in texts
    ]
    assert [p.error.code for p in done.predictions if p.error] == ["run_failed"] * 2
    assert len(done.failed) == 2
    assert scheduler.waiting_tokens() == 0
    assert scheduler.waiting_seconds() == 0


@pytest.mark.parametrize(
    "settings", [Settings(long="windows"), Settings("smoothed", options=Smoothing())]
)
def test_what_is_run_again_in_parts_is_counted_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that may just have its windows, or draws, has them beside an item that can't be run."""
    monkeypatch.setattr(Smoothed, "cost", lambda *_: Cost(draws=2))
    scheduler = Scheduler(Limits(windows=16, drawn_tokens=8 * 2 * 6, speed=1e4, wait=2))

    def predictions(part: Sequence[str]) -> Steps[list[Prediction]]:
        for _ in range(2):
            yield RunRequest("squares", [Word(text) for text in part])
        return [Prediction("x") for _ in part]

    texts = ["a text"] * 7 + ["poison"]
    loaded = opened(Squares(), predictions)
    done = asyncio.run(answering.answer(scheduler, loaded, Asked(texts, settings), 10))
    scheduler.close()
    assert [each.label for each in done.predictions] == ["x"] * 7 + [None]
    assert [each.error.code for each in done.predictions if each.error] == ["run_failed"]
    assert done.ticket.pushed == 14
    assert done.ticket.tokens == 14 * 6


def test_many_passes_make_small_chunks_and_shared_work_one(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["xxx"] * 100
    model, parts = Squares(), list[int]()

    def predictions(part: Sequence[str]) -> Steps[list[Prediction]]:
        parts.append(len(part))
        outputs = yield RunRequest("squares", [Word(text) for text in part])
        return [Prediction(str(value)) for value in outputs["values"]]

    for cost in (Cost(passes=50), Cost(shared=1)):
        monkeypatch.setattr(Plain, "cost", lambda *_, cost=cost: cost)
        parts.clear()
        query, loaded = Asked(texts, Settings()), opened(model, predictions)
        done = asyncio.run(answering.answer(scheduler, loaded, query, 10))
        assert [p.label for p in done.predictions] == ["9"] * 100
        assert len(parts) == (1 if cost.shared else 20)


def test_closing_finishes_what_was_let_in() -> None:
    scheduler = Scheduler(Limits())
    model = Squares()

    async def main() -> list[int]:
        first = await hold(scheduler, model)
        task = asyncio.create_task(ask(scheduler, model, ["x" * 5] * 3))
        await until(lambda: scheduler.waiting_tokens() == 15)
        closing = asyncio.create_task(asyncio.to_thread(scheduler.close))
        model.gate.set()
        await first
        got = await task
        await closing
        return got

    assert asyncio.run(main()) == [25] * 3


def test_a_lone_request_pays_no_batching_delay(scheduler: Scheduler) -> None:
    model = Squares()

    async def main() -> list[float]:
        seconds = []
        for _ in range(60):
            begun = time.perf_counter()
            await ask(scheduler, model, ["alone"])
            seconds.append(time.perf_counter() - begun)
        return seconds

    assert min(asyncio.run(main())) < 0.003


def test_translations_are_awaited_beside_the_queue(scheduler: Scheduler) -> None:
    """They stand in nobody's way, and what is to be done meanwhile is done meanwhile."""
    order: list[str] = []

    async def upper(request: TranslateRequest) -> list[Outcome]:
        order.append("asked")
        while "meanwhile" not in order:
            await asyncio.sleep(0.001)
        [inside] = scheduler._admission.inside
        assert inside.away == inside.share
        return [Translation(text.upper(), "upper") for text in request.texts]

    def steps() -> Steps[str]:
        meanwhile = lambda: order.append("meanwhile")  # noqa: E731
        [found] = yield TranslateRequest(["abc"], ["de"], "en", meanwhile)
        outputs = yield RunRequest("squares", [Word(found.text)])
        return f"{found.text}{outputs['values'][0]}"

    async def main() -> str:
        ticket = scheduler.admit(3, elsewhere=True)
        try:
            answer = await scheduler.predict(ticket, steps(), Squares(), upper)
            assert ticket.away == 0
            return answer
        finally:
            scheduler.leave(ticket)

    assert asyncio.run(main()) == "ABC9"
    assert sorted(order) == ["asked", "meanwhile"]


def test_what_is_to_be_translated_stands_in_nobodys_way_from_the_start() -> None:
    """Even while no thread is free to look at it."""
    scheduler = Scheduler(Limits(speed=1000), threads=1)
    gate = threading.Event()

    def steps() -> Steps[list[int]]:
        yield TranslateRequest(["abc"], ["de"], "en", lambda: None)
        return (yield from squares(["xxx"]))

    async def nothing(request: TranslateRequest) -> list[Outcome]:
        return []

    async def main() -> list[int]:
        scheduler._prepare.submit(gate.wait)
        ticket = scheduler.admit(30_000, elsewhere=True)
        task = asyncio.create_task(scheduler.predict(ticket, steps(), Squares(), nothing))
        await asyncio.sleep(0.05)
        assert ticket.away == ticket.share > 0
        assert scheduler.waiting_seconds() == 0
        gate.set()
        answer = await task
        assert ticket.away == 0
        scheduler.leave(ticket)
        return answer

    try:
        assert asyncio.run(main()) == [9]
    finally:
        gate.set()
        scheduler.close()


def test_translating_ends_with_its_request(scheduler: Scheduler) -> None:
    cancelled = asyncio.Event()

    async def endless(request: TranslateRequest) -> list[Outcome]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return []

    def steps() -> Steps[None]:
        yield TranslateRequest(["abc"], ["de"], "en", lambda: None)

    async def main() -> Ticket:
        ticket = scheduler.admit(3, elsewhere=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await scheduler.predict(ticket, steps(), Squares(), endless)
        scheduler.leave(ticket)
        await asyncio.wait_for(cancelled.wait(), 5)
        return ticket

    assert asyncio.run(main()).away == 0


def test_lanes_go_with_their_bundle(scheduler: Scheduler) -> None:
    class Opened:
        budget = 64

        def of(self, graph: str, single_threaded: bool = False) -> Squares:
            return Squares()

    async def main() -> None:
        ticket = scheduler.admit(1)
        await scheduler.predict(ticket, squares(["x"]), Opened())
        scheduler.leave(ticket)

    asyncio.run(main())
    gc.collect()
    assert not scheduler._all()


def test_it_answers_like_the_library(scheduler: Scheduler) -> None:
    """The shipped bundle, plain and smoothed requests in common batches."""
    classifier = load()
    texts = ["Die Mannschaft gewann das Finale.", "", "Ein Virus wurde entdeckt.", "Пример текста"]
    wanted = [
        Settings(),
        Settings(mode="smoothed", options=Smoothing(samples=30, seed=3)),
        Settings(top_k=2),
    ]

    async def one(settings: Settings) -> object:
        ticket = scheduler.admit(100)
        try:
            steps = classifier.steps(Asked(texts, settings))
            return await scheduler.predict(ticket, steps, classifier.runners)
        finally:
            scheduler.leave(ticket)

    async def main() -> list[object]:
        return await asyncio.gather(*(one(settings) for settings in wanted * 3))

    from xlt_serve.runtime.steps import drive

    for settings, got in zip(wanted * 3, asyncio.run(main()), strict=True):
        expected = drive(classifier.steps(Asked(texts, settings)), classifier.runners.run)
        assert [p.to_dict() for p in got] == [p.to_dict() for p in expected]  # type: ignore[attr-defined]


class Cores:
    """A model on two cores: ``wide`` runs have both, ``single_threaded`` ones one each; all wait for the gate."""

    budget = 1000

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.under_way: list[tuple[bool, list[str]]] = []
        self.done: list[tuple[bool, list[str]]] = []

    def of(self, graph: str, single_threaded: bool = False) -> SimpleNamespace:
        return SimpleNamespace(run=lambda rows: self.run(rows, single_threaded))

    def run(self, rows: Sequence[Word], single_threaded: bool) -> Outputs:
        entry = single_threaded, [row.text for row in rows]
        self.under_way.append(entry)
        self.gate.wait(10)
        time.sleep(0.1)  # so that the other core takes its part meanwhile
        self.under_way.remove(entry)
        self.done.append(entry)
        if any("poison" in row.text for row in rows):
            raise MemoryError("poisoned")
        return {"values": np.array([row.length**2 for row in rows])}


def test_a_lone_row_has_all_cores_and_many_rows_have_one_each() -> None:
    scheduler, model = Scheduler(Limits(speed=1e6), streams=2), Cores()

    async def main() -> None:
        first = asyncio.create_task(ask(scheduler, model, ["x"]))  # type: ignore[arg-type]
        await until(lambda: bool(model.under_way))
        others = [
            asyncio.create_task(ask(scheduler, model, ["y" * 5]))  # type: ignore[arg-type]
            for _ in range(6)
        ]
        await until(lambda: scheduler.waiting_tokens() == 30)
        assert model.under_way == [(False, ["x"])]  # it has all the cores: the others wait
        model.gate.set()
        await first
        await asyncio.gather(*others)

    asyncio.run(main())
    scheduler.close()
    assert all(single_threaded for single_threaded, _ in model.done[1:])
    assert sorted(len(rows) for _, rows in model.done[1:]) == [3, 3]  # neither takes all


def test_streams_run_at_the_same_time_and_a_request_that_fails_in_one_fails_once() -> None:
    scheduler, model = Scheduler(Limits(speed=1e6), streams=2), Cores()

    async def main() -> None:
        # Rows of two lengths that do not go together: a run for each.
        ticket = scheduler.admit(100, rows=4)
        rows = ["a" * 200, "a" * 200, "poison", "poison"]
        bad = asyncio.create_task(scheduler.predict(ticket, squares(rows), model))  # type: ignore[arg-type]
        await until(lambda: len(model.under_way) == 2)
        good = asyncio.create_task(ask(scheduler, model, ["b" * 7]))  # type: ignore[arg-type]
        await until(lambda: scheduler.waiting_tokens() >= 7)
        model.gate.set()
        with pytest.raises(RunFailed):
            await bad
        scheduler.leave(ticket)
        assert await good == [49]
        assert not ticket.parts
        assert scheduler.waiting_tokens() == scheduler.waiting_seconds() == 0

    asyncio.run(main())
    scheduler.close()


def test_once_the_longest_wait_is_reached_only_those_are_let_in_that_hardly_wait() -> None:
    """By a clock of its own: what waits already and would be late is refused after all."""
    now = [100.0]
    scheduler = Scheduler(Limits(speed=1000, wait=2), clock=lambda: now[0])

    def tokens(number: int) -> Ticket:
        return scheduler.admit(3 * number)

    first, *small = tokens(1500), *(tokens(99) for _ in range(5))
    with pytest.raises(Busy):
        tokens(99)  # 2 s
    assert first.evicted is None
    # Those that wait no longer than they work stay.
    assert sum(ticket.evicted is None for ticket in small) == 2
    for ticket in small:
        scheduler.leave(ticket)
    with pytest.raises(Busy):
        tokens(99)  # 1.5 s would have been fine before
    with pytest.raises(Busy):
        scheduler.refuse_if_full()
    other = scheduler.admit(30, client="other")  # whose affair is it?
    scheduler.leave(other)
    scheduler.leave(first)
    scheduler.leave(tokens(10))  # nothing waits
    third = tokens(800)
    now[0] += 0.4  # a quiet moment: it is over
    fourth = tokens(10)
    assert third.evicted is None
    scheduler.leave(third)
    scheduler.leave(fourth)
    scheduler.close()


def test_what_is_evicted_does_not_run_and_says_so() -> None:
    scheduler, model = Scheduler(Limits(speed=100, wait=0.5)), Squares()

    async def main() -> None:
        first = await hold(scheduler, model)
        tasks = []
        for number in range(5):
            tasks.append(asyncio.create_task(ask(scheduler, model, [f"{number}" * 10])))
            await until(lambda number=number: scheduler.waiting_tokens() == 10 * (number + 1))
        scheduler.leave(scheduler.admit(30))  # over the limit; then there is room for it
        await until(lambda: sum(task.done() for task in tasks) == 4)  # while the model is held
        assert all(isinstance(task.exception(), Busy) for task in tasks if task.done())
        model.gate.set()
        assert await first == [1]
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    scheduler.close()
    assert scheduler.waiting_tokens() == 0
    assert sum(len(batch) for batch in model.batches) == 2


def test_shedding_looks_through_what_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the lock held, on the event loop: of ten requests in 30 parts each, no part may cost a look
    at all rows."""
    scheduler, model = Scheduler(Limits(speed=1000, wait=5)), Squares()
    dropped = list[int]()
    drop = Waiting.drop

    def counted(waiting: Waiting[Any], unwanted: Callable[[Any], bool]) -> int:
        dropped.append(len(waiting))
        return drop(waiting, unwanted)

    async def main() -> None:
        first = await hold(scheduler, model)
        tickets = [scheduler.admit(30, rows=30) for _ in range(10)]
        tasks = [
            asyncio.create_task(scheduler.predict(ticket, squares(["x" * 9]), model))
            for ticket in tickets
            for _ in range(30)
        ]
        await until(lambda: scheduler.waiting_tokens() >= 10 * 30 * 9)
        monkeypatch.setattr(Waiting, "drop", counted)
        with scheduler._changed:
            scheduler._admission._shed("", Overload(0.0, shedding=True))
        assert len(dropped) == 1
        monkeypatch.undo()
        model.gate.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        evicted = sum(ticket.evicted is not None for ticket in tickets)
        assert evicted >= 8
        assert sum(isinstance(each, Busy) for each in found) == 30 * evicted
        for ticket in tickets:
            scheduler.leave(ticket)
        await first

    asyncio.run(main())
    assert scheduler.waiting_tokens() == 0
    scheduler.close()


def test_drawn_tokens_are_counted_as_they_are_asked_for(scheduler: Scheduler) -> None:
    """The bytes of a text say little of its tokens where it is short."""

    async def main() -> None:
        ticket = scheduler.admit(1, drawn=100)
        with pytest.raises(TooMuch, match=r"120 drawn tokens.*may draw 100 tokens") as refused:
            await scheduler.predict(ticket, squares(["abc"] * 10, rounds=1000), Squares())
        assert refused.value.code == "too_many_draws"
        assert ticket.tokens == 90
        scheduler.leave(ticket)

    asyncio.run(main())
    assert scheduler.waiting_tokens() == 0


def test_a_smoothed_request_may_draw_so_many_tokens() -> None:
    scheduler = Scheduler(Limits(drawn_tokens=30))
    settings = Settings(mode="smoothed", options=Smoothing(samples=100_000, alpha=1e-38, seed=1))
    loaded: Any = SimpleNamespace(classifier=load())
    with pytest.raises(TooMuch) as refused:  # 0 tokens by its bytes, 3 with the special ones
        asyncio.run(answering.answer(scheduler, loaded, Asked(["a"], settings), 60))
    assert refused.value.code == "too_many_draws"
    scheduler.close()


@pytest.mark.parametrize(("text", "thread"), [(False, "finish"), (True, "prepare")])
def test_draws_of_text_are_tokenised_where_others_answers_need_not_wait(
    text: bool, thread: str
) -> None:
    """Draws of noise are not tokenised, and need not wait for those that come."""
    scheduler, threads = Scheduler(Limits(speed=1e9)), list[str]()

    def steps() -> Steps[None]:
        for _ in range(3):
            threads.append(threading.current_thread().name)
            yield RunRequest("squares", [Word("x")])

    async def main() -> None:
        ticket = scheduler.admit(1, drawn=10**6, retokenised=text)
        await scheduler.predict(ticket, steps(), Squares())
        scheduler.leave(ticket)

    asyncio.run(main())
    scheduler.close()
    assert threads[0].startswith("prepare")
    assert len(threads) == 3
    assert all(name.startswith(thread) for name in threads[1:])


def test_bytes_that_are_cut_off_are_work_too() -> None:
    """They are tokenised: 8 MB of texts of which eight tokens each are read are no short request."""
    scheduler = Scheduler(Limits(speed=1000, wait=2))
    ticket = scheduler.admit(80 * 24, rows=80, generators=3, text=8_000_000)
    assert scheduler.waiting_seconds(work=100) > 8
    pace = scheduler._admission._pace
    for _ in range(3):
        scheduler._is_prepared(ticket, 0.0, 8 / 3)  # as fast as was thought
    assert scheduler._admission._pace == pytest.approx(pace, rel=0.01)
    assert scheduler.waiting_seconds(work=100) < 0.1
    scheduler.leave(ticket)
    scheduler.close()


@pytest.mark.parametrize(
    ("settings", "items", "translations"),
    [
        (Settings(max_length=8), ["a b " * 250], None),
        (Settings(max_length=8), ["a b " * 25_000], None),
        (Settings(max_length=8), ["a b " * 25_000] * 32, None),
        (Settings(), ["a"] * 40 + ["a b " * 300], None),
        (Settings(), [None] * 17, None),
        (Settings(), [""] * 1000, None),
        (Settings(), [("a " * 200, "b " * 300)], None),
        (Settings(long="windows"), ["a b " * 250], None),
        (Settings("translate", max_length=8), ["a"], ["a b " * 250]),
        (Settings("paired", max_length=8), ["a"], ["a b " * 250]),
        (Settings("smoothed", options=Smoothing(samples=20)), ["a b " * 250], None),
        (Settings("zero_shot", options=Candidates(("a", "b"))), ["a b " * 250], None),
        (Settings("zero_shot", options=Candidates(("a" * 950,))), ["a"], None),
    ],
)
def test_no_long_text_is_prepared_on_the_event_loop(
    settings: Settings, items: list[Any], translations: list[Any] | None
) -> None:
    """However little of it is read: to tokenise it takes as long as it is."""
    scheduler, threads = Scheduler(Limits(speed=1e9)), set[str]()

    def predictions(part: Sequence[Any]) -> Steps[list[Prediction]]:
        threads.add(threading.current_thread().name)
        yield RunRequest("squares", [Word("x")])
        return [Prediction("x") for _ in part]

    loaded = opened(Squares(), predictions)
    loaded.classifier.context.bundle = SimpleNamespace(
        manifest=SimpleNamespace(checks={}, noise={})
    )
    query = Asked(items, settings, translations)
    done = asyncio.run(answering.answer(scheduler, loaded, query, 10))
    scheduler.close()
    assert len(done.predictions) == len(items)
    assert threads
    assert all(name.startswith("prepare") for name in threads)


def test_items_without_text_are_work_too() -> None:
    scheduler = Scheduler(Limits(speed=1e9))
    ticket = scheduler.admit(0, rows=1000, items=1000, small=True)
    assert scheduler.waiting_seconds(work=100) > 0.015
    assert not ticket.small
    scheduler.leave(ticket)
    scheduler.close()


@pytest.mark.parametrize("items", [["a b " * 200], ["a b", None, "", *["c"] * 5]])
def test_a_few_short_texts_are_prepared_on_the_event_loop(items: list[Any]) -> None:
    scheduler, threads = Scheduler(Limits(speed=1e9)), set[str]()

    def predictions(part: Sequence[Any]) -> Steps[list[Prediction]]:
        threads.add(threading.current_thread().name)
        yield RunRequest("squares", [Word("x")])
        return [Prediction("x") for _ in part]

    loaded = opened(Squares(), predictions)
    asyncio.run(answering.answer(scheduler, loaded, Asked(items, Settings()), 10))
    scheduler.close()
    assert threads == {threading.current_thread().name}


def test_a_client_that_asks_for_little_waits_for_the_run_under_way_alone() -> None:
    """Eight clients with long requests, and one with a word: its row is in the next run."""
    scheduler, model = Scheduler(Limits(speed=1e4, least=64, wait=5)), Squares()

    async def main() -> None:
        first = await hold(scheduler, model)
        tasks = []
        for number in range(8):
            texts = ["x" * 16] * 250
            tasks.append(asyncio.create_task(ask(scheduler, model, texts, client=f"{number}")))
        await until(lambda: scheduler.waiting_tokens() == 8 * 4000)
        assert scheduler.waiting_seconds(client="light") == 0
        asked = asyncio.create_task(ask(scheduler, model, ["light" + "y" * 11], client="light"))
        await until(lambda: scheduler.waiting_tokens() == 8 * 4000 + 16)
        model.gate.set()
        await first
        assert await asked == [256]
        place = next(n for n, batch in enumerate(model.batches) if "light" + "y" * 11 in batch)
        assert place <= 3  # the first is the one that was held; then a row of each, four a run
        await asyncio.gather(*tasks)

    asyncio.run(main())
    scheduler.close()


def test_all_clients_get_the_same_share_however_much_they_ask_for() -> None:
    scheduler, model = Scheduler(Limits(speed=1e4, least=64)), Squares()

    async def main() -> None:
        first = await hold(scheduler, model)
        tasks = []
        for client, requests in (("a", 1), ("b", 3)):
            for _ in range(requests):
                texts = [client * 16] * 80
                tasks.append(asyncio.create_task(ask(scheduler, model, texts, client=client)))
        await until(lambda: scheduler.waiting_tokens() == 4 * 1280)
        model.gate.set()
        await asyncio.gather(first, *tasks)

    asyncio.run(main())
    scheduler.close()
    rows = [text[0] for batch in model.batches for text in batch][1:]
    half = rows[: rows.index("a") + 2 * 80]  # until a is through
    assert abs(half.count("a") - half.count("b")) <= 8


def test_newcomers_without_end_do_not_keep_a_client_waiting() -> None:
    """Five always wait, each seen for the first time, beside one whose rows fill a run each."""
    scheduler, model = Scheduler(Limits(speed=1e4, least=64, wait=60)), Squares(64, 1e-5)
    text, came = "x" * 64, 0

    async def newcomers(while_waits: asyncio.Task[list[int]]) -> None:
        nonlocal came
        while not while_waits.done() and came < 300:
            came += 1
            await ask(scheduler, model, [text], client=f"newcomer {came}")

    async def main() -> None:
        waits = asyncio.create_task(ask(scheduler, model, [text] * 8, client="waits"))
        await asyncio.gather(waits, *(newcomers(waits) for _ in range(5)))

    asyncio.run(main())
    scheduler.close()
    assert came <= 80  # twice as many as have the same share


def test_who_asks_on_while_it_waits_keeps_what_it_is_owed() -> None:
    scheduler, model = Scheduler(Limits(speed=1e4, least=64)), Squares()

    async def main() -> None:
        first = await hold(scheduler, model)
        tasks = []
        for number in range(2):
            tasks.append(asyncio.create_task(ask(scheduler, model, ["owed"], client="owed")))
            await until(lambda number=number: scheduler.waiting_tokens() == 4 * (number + 1))
            scheduler._shares._now += 1.0  # as others have had since
        assert scheduler._shares.used["owed"] < 1.0
        model.gate.set()
        await asyncio.gather(first, *tasks)

    asyncio.run(main())
    scheduler.close()


def test_a_load_that_can_be_carried_is_carried_after_an_overload() -> None:
    """Half of the capacity, right after the flood: a few are refused for a second, then nobody."""
    scheduler, model = Scheduler(Limits(speed=1000, wait=1)), Squares()
    model.seconds_per_token = 0.001
    refused: list[float] = []

    async def main() -> None:
        await ask(scheduler, model, ["x" * 5])
        flood = scheduler.admit(3 * 1500)
        with pytest.raises(Busy):
            scheduler.refuse_if_full()
        scheduler.leave(flood)
        begun, generator, tasks = time.monotonic(), random.Random(0), []

        async def one() -> None:
            try:
                await ask(scheduler, model, ["x" * 5])
            except Busy:
                refused.append(time.monotonic() - begun)

        while time.monotonic() - begun < 2.5:
            tasks.append(asyncio.create_task(one()))
            await asyncio.sleep(generator.expovariate(80))
        await asyncio.gather(*tasks)

    asyncio.run(main())
    scheduler.close()
    assert not [moment for moment in refused if moment > 1.2]


def test_a_long_request_that_is_refused_is_no_overload() -> None:
    now = [100.0]
    scheduler = Scheduler(Limits(speed=1000, wait=2), clock=lambda: now[0])
    long = [scheduler.admit(3 * 20_000, rows=1000) for _ in range(2)]  # as long as it works
    scheduler.leave(scheduler.admit(30))
    with pytest.raises(Busy):
        scheduler.admit(3 * 20_000, rows=1000)
    scheduler.leave(scheduler.admit(30))  # as before
    assert not any(ticket.evicted for ticket in long)
    for ticket in long:
        scheduler.leave(ticket)
    translated = scheduler.admit(3 * 3000, elsewhere=True)
    with scheduler.elsewhere(translated):
        with pytest.raises(Busy):
            scheduler.admit(3, elsewhere=True)
        waiting = scheduler.admit(30)
        scheduler.leave(scheduler.admit(30))  # the translators' queue is no flood of the encoder
        scheduler.leave(waiting)
    scheduler.leave(translated)
    scheduler.close()


@pytest.mark.parametrize("late", [0.7, 1.2])
def test_a_late_event_loop_refuses_before_it_drowns(late: float) -> None:
    """Many small requests wait to be read, and few rows to be run."""
    now = [100.0]
    scheduler = Scheduler(Limits(speed=1e6, wait=0.5), clock=lambda: now[0])
    scheduler.lagged(0.0)
    for _ in range(CROWD):
        scheduler.refuse_if_full("heavy")
    now[0] += late + BEAT  # in the middle of a round
    with pytest.raises(Busy):
        scheduler.refuse_if_full("heavy")
    if late > TOO_LATE:
        with pytest.raises(Busy):
            scheduler.refuse_if_full("light")
    else:  # whoever did not cause it is let in
        scheduler.refuse_if_full("light")
    scheduler.lagged(late)
    with pytest.raises(Busy):
        scheduler.refuse_if_full("heavy")
    now[0] += 2 * CALM
    scheduler.lagged(0.0)
    scheduler.refuse_if_full("heavy")
    scheduler.close()


def test_a_stall_is_nobodys_flood() -> None:
    """A loop that stood still while a bundle was swapped, say, and a few who waited for it."""
    now = [100.0]
    scheduler = Scheduler(Limits(speed=1e6, wait=0.1), clock=lambda: now[0])
    scheduler.lagged(0.0)
    now[0] += 0.9
    for _ in range(CROWD):
        scheduler.refuse_if_full("one")
        scheduler.leave(scheduler.admit(3, client="one"))
    scheduler.close()
