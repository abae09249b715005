"""Long work on the event loop is done in steps, and of all such work one step in a round of the loop.

If each gave way after its own step only, all that are at it would make a step in every round: with
twenty large bodies a small request would wait for twenty steps.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Generator
from typing import Any
from weakref import WeakKeyDictionary

SMALL = 10_000
"""Bytes that are read or written at once, without a turn: it takes no longer than all else of a request."""

Steps = Generator[None, None, Any]
"""Work in steps that take a millisecond or so; what it returns is the result."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def turn() -> AsyncIterator[None]:
    """For one step. First come, first served; the next one's is in a later round at the earliest."""
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        try:
            yield
        finally:
            await asyncio.sleep(0)


async def by_turns(steps: Steps, small: bool = False) -> Any:
    """The result of all steps. ``small``: the first needs no turn."""
    done, value = _step(steps) if small else (False, None)
    while not done:
        async with turn():
            done, value = _step(steps)
    return value


def _step(steps: Steps) -> tuple[bool, Any]:
    """Whether it was the last, and the result."""
    try:
        next(steps)
    except StopIteration as done:
        return True, done.value
    return False, None
