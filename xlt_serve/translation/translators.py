"""Translators for everyone: the same engines for scripts and for event loops."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from xlt_serve.translation.protocol import Outcome
from xlt_serve.translation.router import Router
from xlt_serve.translation.statistics import Statistics

T = TypeVar("T")


class Translators:
    """A router on an event loop of its own, in a thread of its own.

    Engines hold processes and connections that belong to one loop; here scripts and several loops
    may share them. ``deadline`` seconds are what one request may take in all; None: no limit.
    """

    def __init__(self, router: Router, deadline: float | None = None) -> None:
        self.router, self.deadline = router, deadline
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def statistics(self) -> Statistics:
        return self.router.statistics

    def submit(
        self,
        texts: Sequence[str],
        languages: Sequence[str | None],
        target: str,
        deadline: float | None = None,
    ) -> Future[list[Outcome]]:
        """Translating goes on while the caller does something else."""
        return self._run(self.router.translate(texts, languages, target, deadline))

    def translate(
        self, texts: Sequence[str], languages: Sequence[str | None], target: str
    ) -> list[Outcome]:
        return self.submit(texts, languages, target, self.deadline).result()

    async def translate_async(
        self,
        texts: Sequence[str],
        languages: Sequence[str | None],
        target: str,
        seconds: float | None = None,
    ) -> list[Outcome]:
        """Within ``seconds``, if that is less than the deadline. If the caller is cancelled, so is the
        translating."""
        limits = [limit for limit in (self.deadline, seconds) if limit is not None]
        least = min(limits, default=None)
        return await asyncio.wrap_future(self.submit(texts, languages, target, least))

    def close(self) -> None:
        """Ends the engines' processes and connections; a second call does nothing."""
        with self._lock:
            loop, self._loop, self._closed = self._loop, None, True
        self.router.close()
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            atexit.unregister(self.close)

    def __enter__(self) -> Translators:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._closed:
                work.close()
                raise RuntimeError("these translators are closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                serve = threading.Thread(target=_serve, args=(self._loop,), daemon=True)
                serve.name = "translators"
                serve.start()
                atexit.register(self.close)
            return asyncio.run_coroutine_threadsafe(work, self._loop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
    finally:
        loop.close()
