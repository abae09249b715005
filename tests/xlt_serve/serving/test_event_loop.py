"""New connections are taken at once, whatever else there is to do."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Iterator
from typing import cast

import pytest

from xlt_serve.serving import event_loop
from xlt_serve.serving.event_loop import Acceptor

MANY = 100


class Counted(asyncio.Protocol):
    open: int = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Counted.open += 1
        cast(asyncio.Transport, transport).write(b"hello")


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    Counted.open = 0
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen(2 * MANY)
        yield made


def called(
    listening: socket.socket, count: int, stack: contextlib.ExitStack
) -> list[socket.socket]:
    """So many clients, none of which was taken yet."""
    return [
        stack.enter_context(socket.create_connection(listening.getsockname(), timeout=10))
        for _ in range(count)
    ]


def run(main: object) -> None:
    loop = event_loop.factory()()
    try:
        loop.run_until_complete(main)  # type: ignore[arg-type]
    finally:
        loop.close()


def test_all_that_wait_are_taken_in_few_rounds(listening: socket.socket) -> None:
    pytest.importorskip("uvloop")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Counted, sock=listening, ssl=None, backlog=2 * MANY)
        with contextlib.ExitStack() as stack:
            clients = called(listening, MANY, stack)
            rounds = 0
            while Counted.open < MANY and rounds < MANY:
                rounds += 1
                await asyncio.sleep(0)
                time.sleep(0.001)  # the others' requests
            assert rounds <= 10
            assert all(client.recv(5) == b"hello" for client in clients)
        server.close()
        await server.wait_closed()
        server.close()  # a second time does no harm

    run(main())


def test_without_file_descriptors_it_pauses_and_goes_on(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "PAUSE", 0.05)

    class Full:
        """A socket for which there is no descriptor at first."""

        def __init__(self, real: socket.socket) -> None:
            self.real, self.tries = real, 0

        def accept(self) -> tuple[socket.socket, object]:
            self.tries += 1
            if self.tries == 1:
                raise OSError(errno.EMFILE, "too many open files")
            return self.real.accept()

        def fileno(self) -> int:
            return self.real.fileno()

        def close(self) -> None:
            self.real.close()

    async def main() -> None:
        server = Acceptor(asyncio.get_running_loop(), listening, Counted, 2 * MANY)
        full = server._socket = Full(server._socket)  # type: ignore[assignment]
        with contextlib.ExitStack() as stack:
            (client,) = called(listening, 1, stack)
            async with asyncio.timeout(10):
                while Counted.open < 1:
                    await asyncio.sleep(0.01)
            assert client.recv(5) == b"hello"
        assert full.tries >= 2  # type: ignore[attr-defined]
        server.close()
        await server.wait_closed()

    run(main())


def test_what_is_taken_as_it_closes_is_closed(listening: socket.socket) -> None:
    async def main() -> None:
        server = Acceptor(asyncio.get_running_loop(), listening, Counted, 2 * MANY)
        with contextlib.ExitStack() as stack:
            clients = called(listening, 3, stack)
            server._take()
            server.close()
            await asyncio.wait_for(server.wait_closed(), 10)
            await asyncio.sleep(0.05)
            for client in clients:
                client.setblocking(True)
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(100) in (b"", b"hello")

    run(main())


def test_what_does_not_listen_yet_is_the_loops_own_affair() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with await loop.create_server(Counted, "127.0.0.1", 0) as server:
            assert server.sockets

    run(main())
