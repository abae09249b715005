"""Memory of processes as the sum of their proportional set sizes: a page that several share counts once."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import psutil

RENEW = 1.0
"""Seconds for which the list of a service's processes is held to be true: to make it reads all of /proc."""


def proportional_megabytes(process: int | str = "self") -> float:
    """Shared pages count for this process's part only, mapped weights included."""
    return in_megabytes(Path(f"/proc/{process}/smaps_rollup").read_text())


def in_megabytes(rollup: str) -> float:
    for line in rollup.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise OSError("smaps_rollup has no Pss")


def family(process: int) -> list[int]:
    """A process and all that it has started and that still live."""
    try:
        first = psutil.Process(process)
        return [process, *(child.pid for child in first.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def family_megabytes(processes: list[int]) -> float:
    total = 0.0
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            total += proportional_megabytes(process)
    return total


class Sampler:
    """The memory of a service, looked at again and again by a thread. ``peak`` in megabytes."""

    def __init__(self, process: int, every: float = 0.2) -> None:
        self.peak = self.last = 0.0
        self._process, self._every = process, every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        processes, renew = family(self._process), time.monotonic() + RENEW
        while True:
            if time.monotonic() >= renew:
                processes, renew = family(self._process), time.monotonic() + RENEW
            self.last = family_megabytes(processes)
            self.peak = max(self.peak, self.last)
            if self._over.wait(self._every):
                return

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()
