"""Requests over connections that stay open, with asyncio alone: a load generator must cost little."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from xlt_serve.bench.loops import LoadRun, Reply, Send
from xlt_serve.errors import UsageError

TIMEOUT = 60.0
"""Seconds until a request counts as not answered: longer than a service takes to say so itself."""

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Endpoint:
    """``/classify`` of a server. ``send(n)`` sends the n-th of its bodies, over and over."""

    def __init__(
        self,
        url: str,
        bodies: Sequence[tuple[bytes, int]],
        key: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(url, "is no address of a server", "give http://host:port")
        self.host, self.tls = parts.hostname, parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        path = parts.path.rstrip("/")
        self.path = path if path.endswith("/classify") else f"{path}/classify"
        self._bodies, self._timeout = bodies, timeout
        self._free: list[Connection] = []
        self.unhelpful = 0  # refusals that don't say when to come back
        self._key = f"Authorization: Bearer {key}\r\n" if key else ""

    async def send(self, number: int) -> Reply:
        body, items = self._bodies[number % len(self._bodies)]
        try:
            async with asyncio.timeout(self._timeout):
                status, answer = await self.post(body)
        except (OSError, EOFError, ValueError):  # a TimeoutError is an OSError
            return Reply(0, 0)
        if status != 200:
            return Reply(status, 0)
        failed = errors(answer)
        return Reply(status, items - failed, timings(answer), failed)

    async def post(self, body: bytes) -> tuple[int, bytes]:
        while True:
            fresh = not self._free
            connection = await self._connect() if fresh else self._free.pop()
            try:
                status, answer, keep = await self._exchange(connection, body)
                break
            except BaseException as error:
                connection[1].close()
                # The server may close a connection that nobody used: that is no failed request.
                if fresh or not isinstance(error, OSError | EOFError):
                    raise
        if keep:
            self._free.append(connection)
        else:
            connection[1].close()
        return status, answer

    async def aclose(self) -> None:
        for _, writer in self._free:
            writer.close()
        self._free.clear()
        await asyncio.sleep(0)

    async def _connect(self) -> Connection:
        context = ssl.create_default_context() if self.tls else None
        return await asyncio.open_connection(self.host, self.port, ssl=context)

    async def _exchange(self, connection: Connection, body: bytes) -> tuple[int, bytes, bool]:
        reader, writer = connection
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n{self._key}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        status, fields, answer = await received(reader)
        self.unhelpful += status == 429 and "retry-after" not in fields
        return status, answer, fields.get("connection", "").lower() != "close"


async def received(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """An answer: its status, its headers by their names in lower case, its body."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines[1:] if line)
    }
    if fields.get("transfer-encoding", "").lower() == "chunked":
        answer = await _chunks(reader)
    else:
        answer = await reader.readexactly(int(fields.get("content-length", 0)))
    return int(lines[0].split(" ", 2)[1]), fields, answer


def under_load(
    url: str, bodies: Sequence[tuple[bytes, int]], loop: Callable[[Send], Awaitable[LoadRun]]
) -> LoadRun:
    """A loop of the load generator against a server, such as ``lambda send: closed(send, 8, 10.0)``."""

    async def run() -> LoadRun:
        async with contextlib.aclosing(Endpoint(url, bodies)) as endpoint:
            return await loop(endpoint.send)

    return asyncio.run(run())


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    out = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        out += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return out


def timings(answer: bytes) -> dict[str, float]:
    """The server's own times, found without reading the predictions before them."""
    start = answer.rfind(b'"timings"')
    if start < 0:
        return {}
    try:
        found, _ = json.JSONDecoder().raw_decode(answer[answer.index(b"{", start) :].decode())
    except ValueError:
        return {}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


_FAILED = re.compile(rb'"error":\s*\{')


def errors(answer: bytes) -> int:
    """Items of an answer that have an error instead of a prediction. Texts in it can't look like
    one: their quotes are escaped."""
    return len(_FAILED.findall(answer))


def bodies(
    items: Sequence[Any], size: int, field: str, options: dict[str, Any], translated: bool = False
) -> list[tuple[bytes, int]]:
    """Requests of ``size`` items each, made beforehand; ``translated``: with each item as its own
    translation."""
    out = []
    for start in range(0, len(items), size):
        part = list(items[start : start + size])
        body = {field: part, **({"translations": part} if translated else {}), **options}
        out.append((json.dumps(body, ensure_ascii=False).encode(), len(part)))
    return out
