"""uvloop, with all new connections taken at once.

It takes one in a round of the loop (as libuv does since 1.45). In an overload a round takes as long as
the requests that are ready, so that connections wait for seconds, unseen by all that could refuse them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

AT_ONCE = 32
"""Connections that are taken in a round; the rest may go to other workers."""

PAUSE = 0.5
"""Seconds without new connections where the process has no file descriptors left."""


class Acceptor:
    """Takes connections of a listening socket, of which it has a handle of its own. What uvicorn knows of
    a server: it is closed, and waited for."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        backlog: int,
        ssl: Any = None,
    ) -> None:
        self._loop, self._factory, self._ssl = loop, factory, ssl
        self._socket = listening.dup()
        self._socket.setblocking(False)
        self._socket.listen(backlog)
        self._begun, self._closed = dict[asyncio.Task[None], socket.socket](), False
        self._paused: asyncio.TimerHandle | None = None
        self._begin()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        if self._paused is not None:
            self._paused.cancel()
        for task in self._begun:  # a handshake may take for ever
            task.cancel()

    async def wait_closed(self) -> None:
        if self._begun:
            await asyncio.wait(self._begun)

    def _begin(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._take)

    def _take(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # too many files are open: it would be asked again and again
                self._loop.remove_reader(self._socket.fileno())
                self._paused = self._loop.call_later(PAUSE, self._begin)
                return
            connection.setblocking(False)
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._serve(connection))
            self._begun[task] = connection
            task.add_done_callback(self._ended)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                self._factory, connection, ssl=self._ssl
            )
        except OSError:  # a handshake that fails, say
            connection.close()
            return
        if self._closed:
            transport.close()  # it came too late to be told of the end

    def _ended(self, task: asyncio.Task[None]) -> None:
        connection = self._begun.pop(task)
        if task.cancelled():
            connection.close()


def factory(use_subprocess: bool = False) -> Callable[[], asyncio.AbstractEventLoop]:
    """As uvicorn asks for it; asyncio's own loop, which takes all at once, where uvloop is not there."""
    try:
        import uvloop
    except ImportError:
        return asyncio.SelectorEventLoop

    class Loop(uvloop.Loop):
        async def create_server(self, protocol_factory: Any, *given: Any, **options: Any) -> Any:
            """uvicorn's, for a socket that listens; any other is uvloop's."""
            if set(options) != {"sock", "ssl", "backlog"} or given:
                return await super().create_server(protocol_factory, *given, **options)
            loop = cast(asyncio.AbstractEventLoop, self)
            sock, backlog, ssl = options["sock"], options["backlog"], options["ssl"]
            return Acceptor(loop, sock, protocol_factory, backlog, ssl)

    return Loop
