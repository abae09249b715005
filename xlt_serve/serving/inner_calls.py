"""Calls of a BentoML service to ours in its own process, or in a worker beside it.

They need no key: nobody else can make them. To a worker they are pickled, both ways. Only there: the
public server refuses pickle. And only plain values are read, so that no pickle can run anything.
"""

from __future__ import annotations

import asyncio
import io
import json
import pickle
from collections.abc import Callable
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from xlt_serve.serving.body import Gone
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.middleware import App, Message, Receive, Scope, Send

KIND = "application/vnd.bentoml+pickle"


class Trusted:
    """Whose requests need no key."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.trusts(scope):
            scope.setdefault("state", {})["trusted"] = True
        await self.app(scope, receive, send)

    def trusts(self, scope: Scope) -> bool:
        return True


class TrustedSocket(Trusted):
    """Requests by a Unix socket: BentoML puts it into a folder that its own user alone may enter. A port
    of this machine (``BENTOML_NO_UDS``) is open to all of its users."""

    def trusts(self, scope: Scope) -> bool:
        server = scope.get("server")
        return server is not None and server[1] is None


class PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


class Unpickled:
    """Pickled requests become JSON; their answers, where they are no errors, are pickled. ``largest``:
    how many bytes either may have."""

    def __init__(self, app: App, largest: Callable[[], int]) -> None:
        self.app, self.largest = app, largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _kind(scope) != KIND:
            await self.app(scope, receive, send)
            return
        largest = self.largest()
        pickled = await _read(Request(scope, receive), largest)
        body = await asyncio.to_thread(as_json, pickled, largest)
        headers = [pair for pair in scope["headers"] if pair[0] not in _OF_BODY]
        headers += [(b"content-type", b"application/json")]
        headers += [(b"content-length", str(len(body)).encode())]
        answer = _Answer()
        await self.app({**scope, "headers": headers}, _once(body, receive), answer)
        await answer.response()(scope, receive, send)


async def _read(request: Request, largest: int) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > largest:
                raise _too_large(largest)
    except ClientDisconnect:
        raise Gone from None
    return bytes(body)


def as_json(pickled: bytes, largest: int) -> bytes:
    """A value that a pickle has once may be in its JSON many times."""
    body = bytearray()
    try:
        for part in json.JSONEncoder().iterencode(PlainUnpickler(io.BytesIO(pickled)).load()):
            body += part.encode()
            if len(body) > largest:
                raise _too_large(largest)
        return bytes(body)
    except Refusal:
        raise
    except Exception as error:  # whatever is not what BentoML sends
        problem = str(error)[:100]
        raise Refusal(400, "not_plain", problem, "pickled calls have plain values") from None


def _too_large(largest: int) -> Refusal:
    rule, remedy = f"a body may have {largest} bytes", "split the list into several requests"
    return Refusal(413, "body_too_large", "", rule, remedy)


_OF_BODY = (b"content-type", b"content-length", b"buffer-lengths", b"transfer-encoding")


def _kind(scope: Scope) -> str:
    return next((v.decode("latin-1") for n, v in scope["headers"] if n == b"content-type"), "")


def _once(body: bytes, receive: Receive) -> Receive:
    """This body, then what comes after it: that the client has gone."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return waiting.pop() if waiting else await receive()

    return received


class _Answer:
    """Collects an answer."""

    def __init__(self) -> None:
        self._status = 500
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], [*message["headers"]]
        else:
            self._body += message.get("body", b"")

    def response(self) -> Response:
        body, kind = self._body, "application/json"
        if self._status == 200:
            body, kind = pickle.dumps(json.loads(body)), KIND
        made = Response(body, self._status, media_type=kind)
        kept: Any = [pair for pair in self._headers if pair[0] not in _OF_BODY]
        made.raw_headers += kept
        return made
