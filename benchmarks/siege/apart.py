"""A function in a process of its own: a load generator must not wait for the one that measures."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from xlt_serve.errors import DataError

Work = Callable[..., Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Done:
    """``value``: what the function gave; ``cpu``: seconds of a processor that it took."""

    value: Any
    cpu: float
    seconds: float


class Apart:
    """Runs ``work(*given)``, an async function that can be imported, once it is told to go: to start a
    process takes a while. It lives on after its result, with the sockets that it holds, until the block
    ends."""

    def __init__(self, work: Work, *given: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_called, args=(there, work, given), daemon=True)
        self._process.start()
        there.close()

    async def ready(self, patience: float = 60.0) -> None:
        await self._received(patience)

    def go(self) -> None:
        self._here.send(None)

    async def result(self, patience: float) -> Done:
        found: Done | BaseException = await self._received(patience)
        if isinstance(found, BaseException):
            raise found
        return found

    async def _received(self, patience: float) -> Any:
        ends = time.monotonic() + patience
        while not self._here.poll():  # a thread that waits could not be told to stop
            if time.monotonic() > ends:
                raise DataError(
                    self._process.name, f"the load generator was not done after {patience:.0f} s"
                )
            await asyncio.sleep(0.02)
        try:
            return self._here.recv()
        except EOFError:
            raise DataError(self._process.name, "the load generator died") from None

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: Any) -> None:
        self._here.close()
        self._process.join(1)
        self._process.kill()
        self._process.join()


def _called(pipe: Connection, work: Work, given: tuple[Any, ...]) -> None:
    import uvloop

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that measures ends this one
    pipe.send(None)
    try:
        pipe.recv()
    except EOFError:  # it is not wanted any more
        return
    begun, cpu = time.monotonic(), time.process_time()
    found: Done | BaseException
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            value = runner.run(work(*given))
        found = Done(value, time.process_time() - cpu, time.monotonic() - begun)
    except Exception as error:
        found = error
    with contextlib.suppress(OSError):
        pipe.send(found)
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
