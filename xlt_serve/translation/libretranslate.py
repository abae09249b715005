"""A translator behind HTTP that speaks LibreTranslate's language."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from xlt_serve.errors import UsageError
from xlt_serve.translation.protocol import PairRefused, Translation, TranslationError
from xlt_serve.translation.worker import Worker

LARGEST = 8_000_000
"""Bytes of an answer; a server that sends more is not translating."""


@dataclass
class Http:
    """``languages``: pairs are taken only from these, all if none are given. ``codes``: the server's
    names of languages where they differ from ours (``zh`` is ``zh-Hans`` in newer LibreTranslates)."""

    url: str
    name: str = "http"
    api_key: str = ""
    languages: Sequence[str] = ()
    codes: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 10.0
    connections: int = 2

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(self.url, "is not an http(s) URL", "write http://host:port")
        self._parts = parts
        self._path = parts.path.rstrip("/").removesuffix("/translate") + "/translate"
        self._worker = Worker(f"http-{self.name}", self.connections)
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = False

    def takes(self, source: str, target: str) -> bool:
        return not self.languages or source in self.languages

    async def translate(
        self, texts: Sequence[str], source: str, target: str
    ) -> list[Translation | None]:
        asked = {
            "q": list(texts),
            "source": self.codes.get(source, source),
            "target": self.codes.get(target, target),
            "format": "text",
        }
        if self.api_key:
            asked["api_key"] = self.api_key
        answer = await self._worker.run(self._post, json.dumps(asked).encode())
        given = answer.get("translatedText") if isinstance(answer, dict) else None
        if isinstance(given, str):
            given = [given]
        if not isinstance(given, list) or len(given) != len(texts):
            raise TranslationError(self.url, f"did not answer with {len(texts)} translations")
        return [Translation(t, self.name) if isinstance(t, str) else None for t in given]

    def close(self) -> None:
        self._worker.stop()
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _post(self, body: bytes) -> Any:
        """On a connection that stays open; if the server closed it meanwhile, once more on a new one."""
        deadline = time.monotonic() + self.timeout
        with contextlib.suppress(ConnectionError):  # RemoteDisconnected is one
            if (kept := self._kept()) is not None:
                return self._exchange(kept, body, deadline)
        return self._exchange(self._connection(), body, deadline)

    def _kept(self) -> http.client.HTTPConnection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connection(self) -> http.client.HTTPConnection:
        https = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
        return kind(self._parts.hostname or "", self._parts.port, timeout=self.timeout)

    def _exchange(
        self, connection: http.client.HTTPConnection, body: bytes, deadline: float
    ) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        keep = False
        try:
            connection.request("POST", self._path, body, headers)
            with connection.getresponse() as response:
                data = self._read(connection, response, deadline)
                keep = not response.will_close and not self._closed
        finally:
            if keep:
                self._idle.append(connection)
            else:
                connection.close()
        return _parsed(self.url, response.status, data)

    def _read(
        self,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        deadline: float,
    ) -> bytes:
        """All of the answer before the deadline, however slowly it drips."""
        out = b""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no whole answer within {self.timeout} s")
            if connection.sock is not None:
                connection.sock.settimeout(left)
            data = response.read1(65536)
            if not data:
                return out
            out += data
            if len(out) > LARGEST:
                raise TranslationError(self.url, f"answered with more than {LARGEST} bytes")


def _parsed(url: str, status: int, data: bytes) -> Any:
    try:
        answer = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise TranslationError(url, f"answered {status} with what is not JSON") from None
    if status == 200:
        return answer
    message = answer.get("error", "") if isinstance(answer, dict) else ""
    if status == 400:
        raise PairRefused(url, f"refused: {str(message)[:200]}")
    raise TranslationError(url, f"answered {status}: {str(message)[:200]}")
