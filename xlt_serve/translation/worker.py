"""Blocking calls on threads of their own, awaited from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """``threads`` daemon threads, started with the first call.

    Daemons, since a call that hangs must not keep the process from ending, as the pools of
    ``concurrent.futures`` would. A call that is cancelled before its turn is never made; one that is
    running goes on, and its result is dropped.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self.name, self.threads = name, threads
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started = False

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result, error = call(*arguments), None
            except BaseException as raised:
                result, error = None, raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, future, result, error)

        if not self._started:
            self._started = True
            for number in range(self.threads):
                name = f"{self.name}-{number}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._calls.put(work)
        return await future

    def stop(self) -> None:
        if self._started:
            for _ in range(self.threads):
                self._calls.put(None)

    def _serve(self) -> None:
        while (work := self._calls.get()) is not None:
            work()


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
