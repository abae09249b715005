"""Engines that do what engines do: work, crash, hang, talk nonsense. And a server with their manners."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from xlt_serve.translation.protocol import Translation


@dataclass
class Shouting:
    """Works: the translation is the text in capitals. Counts its calls."""

    name: str = "shouting"
    delay: float = 0.0
    calls: list[list[str]] = field(default_factory=list)
    closed: bool = False
    cancelled: int = 0

    def takes(self, source: str, target: str) -> bool:
        return source != "xx"

    async def translate(
        self, texts: Sequence[str], source: str, target: str
    ) -> list[Translation | None]:
        self.calls.append(list(texts))
        try:
            await asyncio.sleep(self.delay)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return [Translation(text.upper(), self.name, 0.5) for text in texts]

    def close(self) -> None:
        self.closed = True


@dataclass
class Faulty(Shouting):
    """Answers with whatever ``say`` makes of its texts; it may raise."""

    name: str = "faulty"
    say: Callable[[list[str]], list[Any]] = lambda texts: texts

    async def translate(
        self, texts: Sequence[str], source: str, target: str
    ) -> list[Translation | None]:
        self.calls.append(list(texts))
        return [
            given if given is None else Translation(given, self.name)
            for given in self.say(list(texts))
        ]


@dataclass
class Loose(Shouting):
    """Answers with texts, where translations are wanted."""

    name: str = "loose"

    async def translate(self, texts: Sequence[str], source: str, target: str) -> list[Any]:
        return [text.title() for text in texts]


Answer = tuple[int, bytes]


@contextmanager
def libretranslate(
    reply: Callable[[dict[str, Any]], Answer | None], drip: float = 0.0
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers POST /translate; its URL, and what it was asked. ``reply`` None: hang up."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body | {"path": self.path, "port": self.client_address[1]})
            answer = reply(body)
            if answer is None:
                self.close_connection = True
                return
            status, data = answer
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            try:
                for start in range(0, len(data), 1 if drip else len(data)):
                    self.wfile.write(data[start : start + (1 if drip else len(data))])
                    time.sleep(drip)
            except OSError:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def shout(body: dict[str, Any]) -> Answer:
    """What LibreTranslate answers to a list, with capitals for a translation."""
    return 200, json.dumps({"translatedText": [text.upper() for text in body["q"]]}).encode()
