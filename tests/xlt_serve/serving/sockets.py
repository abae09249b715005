"""A server in this process as a worker has it, and clients that write what no library would."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import uvicorn

from tests.xlt_serve.serving.conftest import valid
from xlt_serve.serving.bounded_http import BoundedProtocol
from xlt_serve.serving.middleware import App
from xlt_serve.serving.settings import Environment


@dataclass
class Listening:
    port: int
    server: uvicorn.Server

    @contextlib.contextmanager
    def client(self, receive_buffer: int = 0) -> Iterator[socket.socket]:
        with socket.socket() as made:
            if receive_buffer:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            made.settimeout(60)
            made.connect(("127.0.0.1", self.port))
            yield made

    def said(self, *parts: bytes) -> list[Heard]:
        """All answers to these parts, until the server closes."""
        with self.client() as one:
            for part in parts:
                one.sendall(part)
            return heard(one)


@dataclass
class Heard:
    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> str:
        """The code, after comparing the body with the schema."""
        found = valid("Error", json.loads(self.body))["error"]
        assert found["request_id"] == self.headers["x-request-id"]
        return str(found["code"])


def heard(client: socket.socket) -> list[Heard]:
    """All that comes until the end of the stream; a reset is an error."""
    data = b""
    while got := client.recv(65536):
        data += got
    return answers(data)


def answers(data: bytes) -> list[Heard]:
    out = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in lines)}
        length = int(headers.get("content-length", 0))
        out.append(Heard(int(first.split()[1]), headers, data[:length]))
        data = data[length:]
    return out


@contextlib.contextmanager
def listening(app: App, **limits: Any) -> Iterator[Listening]:
    """``limits`` on top of long times: where the machine is crowded, only the test of a time may meet it."""
    patient = dict.fromkeys(["header_timeout", "idle_timeout", "write_timeout"], 20.0)
    environment = replace(Environment({}), **(patient | {"drain_timeout": 20.0} | limits))
    kind = type("Small", (BoundedProtocol,), {"environment": environment})
    config = uvicorn.Config(app, http=kind, log_config=None, lifespan="on", loop="uvloop")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]}, daemon=True)
        thread.start()
        until = time.monotonic() + 30
        while not server.started and thread.is_alive() and time.monotonic() < until:
            time.sleep(0.005)
        assert server.started
        try:
            yield Listening(door.getsockname()[1], server)
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive(), "the server did not end"
