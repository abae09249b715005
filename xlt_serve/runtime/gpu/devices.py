"""Which GPUs: from what a user says to numbers, and one graph open on several of them.

Numbers count what the driver shows to this process, so ``CUDA_VISIBLE_DEVICES`` is respected by itself.
"""

from __future__ import annotations

import ctypes
import queue
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from xlt_serve.errors import UsageError
from xlt_serve.runtime.gpu.placement import Placed
from xlt_serve.runtime.gpu.providers import Load, gpus
from xlt_serve.runtime.session import Session
from xlt_serve.runtime.shapes import Sizes
from xlt_serve.runtime.steps import Outputs

ALL = "all"


def numbers(said: str, load: Load = ctypes.CDLL) -> tuple[int, ...]:
    """``0``, ``0,1`` or ``all``, which asks the driver how many there are."""
    if said.strip() == ALL:
        return tuple(range(gpus(load)))
    parts = [part.strip() for part in said.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts) or len({*parts}) < len(parts):
        raise UsageError(f"device={said[:50]}", "must be numbers of GPUs, each once, or all", "0,1")
    return tuple(map(int, parts))


def worker_device(devices: Sequence[int], worker: int | None) -> int:
    """That of a worker, counted from 1: each has one, and they go round."""
    return devices[((worker or 1) - 1) % len(devices)] if devices else 0


class Spread(Session):
    """One graph, open once on each of several GPUs: a run takes whichever is free."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = tuple(sessions)
        self._free: queue.SimpleQueue[Session] = queue.SimpleQueue()
        for session in self.sessions:
            self._free.put(session)
        first = self.sessions[0]
        self.inputs, self.outputs, self.dims = first.inputs, first.outputs, first.dims
        self.provider = first.provider

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> Outputs:
        session = self._free.get()
        try:
            return session.run(feeds)
        finally:
            self._free.put(session)

    def assigned(self) -> list[Placed]:
        return [place for session in self.sessions for place in session.assigned()]

    def ran(self, feeds: Mapping[str, npt.NDArray[Any]]) -> list[Sizes]:
        return self.sessions[0].ran(feeds)
