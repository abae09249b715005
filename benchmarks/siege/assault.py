"""What attackers have in common: connections that write anything, and a count of what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xlt_serve.bench.http_load import received

HOST = "127.0.0.1"
LIGHT, HEAVY, ADMIN = "key-of-the-light-client", "key-of-the-attacker", "key-of-the-operator"
PIECE = 65536
LONGEST_END = 150.0
"""Seconds that an attack may last beyond its time, waiting for answers."""

HELD: list[socket.socket] = []
"""Sockets that stay open as long as the process."""


@dataclass(frozen=True)
class Target:
    """A server: ``kind`` is xlt, bentoml or infinity; ``folder``: where an attack finds its files."""

    port: int
    kind: str
    process: int
    folder: Path
    seconds: float

    def body(self, texts: Sequence[Any], **options: Any) -> bytes:
        given = {"model": "m", "input": texts} if self.kind == "infinity" else {"texts": texts}
        return json.dumps(given | options).encode()


def head(
    length: int | str, path: str = "/classify", key: str = HEAVY, more: str = "", close: bool = True
) -> bytes:
    last = "Connection: close\r\n" if close else ""
    return (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {key}\r\n{last}"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n"
    ).encode()


@dataclass
class Assault:
    """An attack under way. ``got``: what came back, by status or by how a connection ended."""

    target: Target
    got: Counter[str] = field(default_factory=Counter)
    last: float = field(default_factory=time.monotonic)  # when it sent, or let go of, anything
    sent: int = 0
    begun: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        return time.monotonic() - self.begun > self.target.seconds

    @property
    def left(self) -> float:
        return max(0.0, self.target.seconds - (time.monotonic() - self.begun))

    async def connect(self) -> Line | None:
        """None where no connection is to be had."""
        try:
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection(HOST, self.target.port)
        except OSError as error:
            self.got[f"no connection ({type(error).__name__})"] += 1
            await asyncio.sleep(0.1)
            return None
        return Line(self, reader, writer)

    async def ask(
        self,
        body: bytes,
        path: str = "/classify",
        key: str = HEAVY,
        patience: float | None = None,
        note: str = "",
    ) -> tuple[int, bytes]:
        """A whole request on a connection of its own; 0: no answer. It waits for ten seconds longer than
        the attack lasts, or as told."""
        line = await self.connect()
        if line is None:
            return 0, b""
        try:
            sending = asyncio.create_task(line.send(head(len(body), path, key) + body))
            wait = self.left + 10 if patience is None else patience
            status, answer = await line.answer(wait, note)
            sending.cancel()
            return status, answer
        finally:
            line.close()

    async def repeat(
        self, clients: int, work: Callable[[], Awaitable[Any]], pause: float = 0.0
    ) -> None:
        """So many clients do it again and again until the time is over."""

        async def client() -> None:
            while not self.over:
                await work()
                await asyncio.sleep(pause)

        await asyncio.gather(*(client() for _ in range(clients)))

    def wrote(self, count: int) -> None:
        self.sent += count
        self.last = time.monotonic()


@dataclass
class Line:
    """A connection of an attacker."""

    assault: Assault
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> bool:
        """Whether the other side still takes it."""
        try:
            for start in range(0, len(data), PIECE):
                part = data[start : start + PIECE]
                self.writer.write(part)
                await self.writer.drain()
                self.assault.wrote(len(part))
        except OSError:
            return False
        return not self.writer.is_closing() and not self.reader.at_eof()

    async def answer(self, patience: float, note: str = "") -> tuple[int, bytes]:
        """Counts it, too, under its status or how the connection ended, with ``note`` before it."""
        status, answer = 0, b""
        try:
            async with asyncio.timeout(patience):
                status, _, answer = await received(self.reader)
            said = str(status)
        except TimeoutError:
            said = "no answer in time"
        except ConnectionError:
            said = "reset"
        except (EOFError, ValueError, OSError, asyncio.LimitOverrunError):
            said = "closed without an answer"
        self.assault.got[note + said] += 1
        return status, answer

    def close(self) -> None:
        """Also an end of the attack: what was held is let go."""
        self.writer.close()
        self.assault.wrote(0)


async def carried_out(run: Callable[[Assault], Awaitable[None]], target: Target) -> dict[str, Any]:
    """An attack in full, in this process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    assault = Assault(target)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(target.seconds + LONGEST_END):
            await run(assault)
    return {"got": dict(+assault.got), "sent": assault.sent, "last": assault.last}
