"""One machine: reading, answering and writing overlap, and every core answers.

The graph runs on one thread in each of as many workers as there are cores: batches don't wait for
one another, which two threads in one batch would do in every layer, and the numbers do not depend on
how many cores there are.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from xlt_serve.errors import DataError
from xlt_serve.files.window import Window
from xlt_serve.scoring.answer import Answerer
from xlt_serve.scoring.order import Order
from xlt_serve.types import Prediction

T = TypeVar("T")
PREFETCH = 2
"""Windows that may wait between two stages."""


@dataclass(slots=True)
class ScoredWindow:
    """A window on its way: whose it is, and later what was predicted."""

    unit: int
    source: int
    window: Window
    predictions: list[Prediction]


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


def answered(
    pieces: Iterator[ScoredWindow], answerer: Answerer, workers: int, rows: int
) -> Iterator[ScoredWindow]:
    """The pieces in order with their predictions; about ``rows`` rows are under way at a time."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="score")
    waiting: deque[tuple[ScoredWindow, list[tuple[list[int], Future[list[Prediction]]]]]] = deque()
    held = 0
    try:
        for piece in pieces:
            parts = [
                (numbers, pool.submit(answerer.answer, piece.window, numbers))
                for numbers in answerer.slices(piece.window)
            ]
            waiting.append((piece, parts))
            held += len(piece.window.rows)
            # The next window is begun before the last of this one is done: no core waits.
            while waiting and held - len(waiting[0][0].window.rows) >= rows:
                held -= len(waiting[0][0].window.rows)
                yield _done(*waiting.popleft(), answerer)
        while waiting:
            yield _done(*waiting.popleft(), answerer)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if isinstance(pieces, Generator):
            pieces.close()


def _done(
    piece: ScoredWindow, parts: list[tuple[list[int], Future[list[Prediction]]]], answerer: Answerer
) -> ScoredWindow:
    found = [(numbers, future.result()) for numbers, future in parts]
    piece.predictions = answerer.assembled(piece.window, found)
    return piece


def refuse_bad(order: Order, piece: ScoredWindow) -> None:
    """``--strict``: the first row without an answer is the end."""
    if not order.strict:
        return
    for row, prediction in enumerate(piece.predictions):
        if prediction.error:
            last = piece.window.end.line
            raise DataError(
                f"row {row + 1} of the {len(piece.predictions)} that end at line {last}",
                f"{prediction.error.code}: {prediction.error.message}",
                "mend it, or leave out --strict",
            )
