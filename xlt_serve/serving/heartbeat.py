"""The event loop's heartbeat: how late it comes, and where the loop stands when it does not come.

A loop that stands still can't say so, and no probe can ask it. A thread looks, and ends the process when
it has stood for too long: nobody is answered by it, its connections hang, and what started the process
starts another. Only the looks that the thread came to itself count: a process that was stopped, or a
machine that slept, is no loop that hangs. Neither is one in a debugger. If somebody holds the interpreter
for ever, the thread can't look either.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType

from xlt_serve.serving.log import Log, places

BEAT = 0.01
"""Seconds from one to the next: no step of the loop that is longer goes unseen."""

HANGS = 1.0
"""Seconds without one after which the log says where the loop stands."""

DEAD = 10.0
"""Seconds without one after which the worker is ended."""

DEBUGGERS = frozenset({"bdb", "pdb", "pydevd", "debugpy"})


class Heartbeat:
    """``late``: is told, at each beat, by how many seconds it came late. ``dead``: what to do about a
    loop that has stood still for too long, in another thread."""

    def __init__(
        self, late: Callable[[float], None], log: Log, dead: Callable[[], None] = lambda: None
    ) -> None:
        self._late, self._log, self._dead = late, log, dead
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._last = time.monotonic()
        self._ended = threading.Event()
        self._timer = self._loop.call_later(BEAT, self._beat)
        threading.Thread(target=self._watch, name="xlt-watch", daemon=True).start()

    def end(self) -> None:
        self._timer.cancel()
        self._ended.set()

    def _beat(self) -> None:
        now = time.monotonic()
        self._late(max(0.0, now - self._last - BEAT))
        self._last = now
        self._timer = self._loop.call_later(BEAT, self._beat)

    def _watch(self) -> None:
        pause = HANGS / 2
        seen, stood, told = self._last, 0.0, False
        while not self._ended.wait(pause):
            if self._loop.is_closed():
                return
            if self._last != seen:
                seen, stood, told = self._last, 0.0, False
                continue
            frame = sys._current_frames().get(self._thread)
            if debugged(frame):
                continue
            stood += pause
            if stood >= HANGS and not told:
                told = True
                self._tell("loop_stands", stood, frame)
            if stood >= DEAD:
                self._tell("loop_dead", stood, frame)
                self._log.flush()
                self._dead()
                return

    def _tell(self, event: str, stood: float, frame: FrameType | None) -> None:
        where = places(traceback.extract_stack(frame)[-8:]) if frame else []
        self._log.write(event, level="error", seconds=round(stood, 1), where=where)


def end_process() -> None:
    """At once: what would be tidied up waits for the loop."""
    os._exit(70)


def debugged(frame: FrameType | None) -> bool:
    """Whether somebody steps through it by hand."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in DEBUGGERS:
            return True
        frame = frame.f_back
    return False
