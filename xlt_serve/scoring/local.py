"""One machine: reading, answering and writing overlap, and every core answers.

The graph runs on one thread in each of as many workers as there are cores: batches don't wait for
one another, which two threads in one batch would do in every layer, and the numbers do not depend on
how many cores there are.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from xlt_serve.errors import DataError
from xlt_serve.files.window import MOST_BYTES, Window
from xlt_serve.scoring import columns
from xlt_serve.scoring.answer import Answerer, WindowPlan
from xlt_serve.scoring.answered import Answer, Spot
from xlt_serve.scoring.counts import Counts
from xlt_serve.scoring.order import Order

T = TypeVar("T")
PREFETCH = 2
"""Windows that may wait between two stages."""


@dataclass(slots=True)
class ScoredWindow:
    """A window on its way: whose it is, and later its answers. ``ahead``: what was shown of it before it
    was whole."""

    unit: int
    source: int
    window: Window
    answers: list[Answer] = field(default_factory=list)
    ahead: Counts = field(default_factory=Counts)

    @property
    def spot(self) -> Spot:
        return self.unit, self.source, self.window.end.offset


def prefetched(values: Iterator[T], depth: int = PREFETCH) -> Iterator[T]:
    """The same values, made by a thread of its own, at most ``depth`` before they are wanted.

    Its error is raised here; when nobody wants more, it stops.
    """
    ready: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(depth)
    stop = threading.Event()

    def put(good: bool, value: T | BaseException | None) -> None:
        while not stop.is_set():
            try:
                ready.put((good, value), timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for value in values:
                put(True, value)
                if stop.is_set():
                    return
        except BaseException as error:
            put(False, error)
        else:
            put(False, None)
        finally:
            if isinstance(values, Generator):
                values.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            good, value = ready.get()
            if good:
                yield value  # type: ignore[misc]
            elif value is None:
                return
            else:
                raise value  # type: ignore[misc]
    finally:
        stop.set()
        thread.join(timeout=5)  # one that waits for a pipe can't be woken


Slice: TypeAlias = tuple[list[int], Future[list[Answer]]]


def answered(
    pieces: Iterator[ScoredWindow],
    answerer: Answerer,
    workers: int,
    rows: int,
    done: Callable[[ScoredWindow, list[Answer]], None] = lambda piece, answers: None,
) -> Generator[ScoredWindow, None, None]:
    """The pieces in order with their answers; about ``rows`` rows, and not many more bytes than a window
    has at most, are under way at a time. ``done`` is called for each slice, by any thread."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="score")
    waiting: deque[tuple[ScoredWindow, WindowPlan, list[Slice]]] = deque()
    held = size = 0

    def run(piece: ScoredWindow, plan: WindowPlan, numbers: list[int]) -> list[Answer]:
        answers = answerer.answer(plan, piece.window, numbers)
        done(piece, answers)
        return answers

    def begun(piece: ScoredWindow, plan: WindowPlan, numbers: list[int]) -> Future[list[Answer]]:
        known = answerer.known(plan, numbers)
        if known is None:
            return pool.submit(run, piece, plan, numbers)
        future: Future[list[Answer]] = Future()
        future.set_result(known)
        return future

    try:
        for piece in pieces:
            plan = answerer.plan(piece.spot, piece.window)
            slices = [(numbers, begun(piece, plan, numbers)) for numbers in plan.slices]
            waiting.append((piece, plan, slices))
            held, size = held + len(piece.window.rows), size + piece.window.size
            # The next window is begun before the last of this one is done: no core waits.
            while waiting and (
                held - len(waiting[0][0].window.rows) >= rows
                or size - waiting[0][0].window.size >= MOST_BYTES
            ):
                held -= len(waiting[0][0].window.rows)
                size -= waiting[0][0].window.size
                yield _whole(*waiting.popleft(), answerer)
        while waiting:
            yield _whole(*waiting.popleft(), answerer)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if isinstance(pieces, Generator):
            pieces.close()


def _whole(
    piece: ScoredWindow, plan: WindowPlan, slices: list[Slice], answerer: Answerer
) -> ScoredWindow:
    parts = [(numbers, future.result()) for numbers, future in slices]
    piece.answers = answerer.assembled(plan, parts)
    return piece


def refuse_bad(order: Order, piece: ScoredWindow) -> None:
    """``--strict``: the first row without an answer is the end."""
    if not order.strict:
        return
    for row, answer in enumerate(piece.answers):
        if answer["error"]:
            last = piece.window.end.line
            raise DataError(
                f"row {row + 1} of the {len(piece.answers)} that end at line {last}",
                columns.flat(answer["error"]),
                "mend it, or leave out --strict",
            )
