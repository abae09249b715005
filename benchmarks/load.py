"""A load generator that costs little: plain sockets, requests made beforehand, answers hardly read.

``closed``: so many clients, each asks again when it is answered. ``arrivals``: requests come at random
times (Poisson) at a rate, whether or not the earlier ones are answered.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Measured:
    """``answered`` with status 200 within the ``wall`` seconds; ``seconds`` until each such answer,
    however late it came, and so far where none has; ``cpu``: the generator's share of all cores."""

    wall: float
    cpu: float
    answered: int = 0
    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def summary(self, deadline: float = 1.0) -> dict[str, Any]:
        found = np.array(self.seconds or [float("nan")])
        return {
            "per_second": self.answered / self.wall,
            **{f"p{q}": float(np.percentile(found, q)) for q in (50, 90, 95, 99)},
            "max": float(found.max()),
            "good_within_1s": float(np.sum(found <= deadline) / max(1, self.statuses.total())),
            "statuses": {str(status): number for status, number in self.statuses.items()},
            "generator_cpu": self.cpu,
        }


@dataclass(frozen=True)
class Target:
    """Where requests go; ``bodies`` are their JSON, one of them for each request."""

    port: int
    path: str
    bodies: Sequence[Any]

    def requests(self) -> list[bytes]:
        out = []
        for body in self.bodies:
            content = json.dumps(body, ensure_ascii=False).encode()
            head = (
                f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(content)}\r\n\r\n"
            )
            out.append(head.encode() + content)
        return out


class Line:
    """One connection, kept open."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, request: bytes) -> int:
        """The status; 0 if the connection broke. A connection that the server had closed because it
        was idle is opened anew, as every client does."""
        used = self.writer is not None
        status = await self._ask(request)
        return await self._ask(request) if status == 0 and used else status

    async def _ask(self, request: bytes) -> int:
        try:
            if self.writer is None or self.reader is None:
                self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
            self.writer.write(request)
            head = await self.reader.readuntil(b"\r\n\r\n")
            lower = head.lower()
            at = lower.find(b"content-length:")
            if at >= 0:
                end = lower.index(b"\r", at)
                await self.reader.readexactly(int(head[at + 15 : end]))
            else:
                while (size := int(await self.reader.readline(), 16)) > 0:  # chunked
                    await self.reader.readexactly(size + 2)
                await self.reader.readline()
            return int(head[9:12])
        except (OSError, asyncio.IncompleteReadError, ValueError):
            self.close()
            return 0

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


def cores() -> int:
    from xlt_serve.runtime.session import available_cores

    return available_cores()


async def closed(target: Target, clients: int, seconds: float, seed: int = 0) -> Measured:
    """The first fifth of the time warms up: what was answered in it is not counted. What was asked
    before the end is, however late the answer: else the slower a server, the faster it would look."""
    requests, generator = target.requests(), random.Random(seed)
    order = [generator.randrange(len(requests)) for _ in range(100_000)]
    begun = time.perf_counter()
    start, end = begun + seconds / 5, begun + seconds
    found: list[float] = []
    statuses: Counter[int] = Counter()
    number = answered = 0
    cpu = 0.0

    async def client() -> None:
        nonlocal number, answered
        line = Line(target.port)
        while (sent := time.perf_counter()) < end:
            number += 1
            status = await line.ask(requests[order[number % len(order)]])
            now = time.perf_counter()
            if now >= start:
                statuses[status] += 1
                if status == 200:
                    found.append(now - sent)
                    answered += now <= end
        line.close()

    async def clock() -> None:
        nonlocal cpu
        await asyncio.sleep(start - time.perf_counter())
        cpu = time.process_time()
        await asyncio.sleep(end - time.perf_counter())
        cpu = time.process_time() - cpu

    await asyncio.gather(clock(), *(client() for _ in range(clients)))
    wall = end - start
    return Measured(wall, cpu / wall / cores(), answered, found, statuses)


async def arrivals(target: Target, rate: float, seconds: float, seed: int = 0) -> Measured:
    """Latency counts from the time a request was due: a generator that is late hides nothing."""
    requests, generator = target.requests(), random.Random(seed)
    idle: list[Line] = []
    found: list[float] = []
    statuses: Counter[int] = Counter()
    begun, cpu = time.perf_counter(), time.process_time()

    async def one(due: float, request: bytes) -> None:
        line = idle.pop() if idle else Line(target.port)
        status = await line.ask(request)
        statuses[status] += 1
        if status == 200:
            found.append(time.perf_counter() - due)
        idle.append(line)

    due, tasks = begun, dict[asyncio.Task[None], float]()
    while due < begun + seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(one(due, generator.choice(requests)))
        tasks[task] = due
        task.add_done_callback(tasks.pop)
        due += generator.expovariate(rate)
    if tasks:
        await asyncio.wait(tasks, timeout=60)
    wall = time.perf_counter() - begun
    for line in idle:
        line.close()
    statuses[0] += len(tasks)
    answered = len(found)
    now = time.perf_counter()
    found += [now - due for due in tasks.values()]  # at least that long
    for task in list(tasks):
        task.cancel()
    return Measured(wall, (time.process_time() - cpu) / wall / cores(), answered, found, statuses)
