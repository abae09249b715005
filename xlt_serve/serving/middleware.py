"""The outermost layer: request ids, keys, one shape of errors, a line in the log, metrics.

Plain ASGI, so that bodies stream and a client that leaves is noticed within.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from xlt_serve.serving import auth as keys
from xlt_serve.serving import failures
from xlt_serve.serving.auth import Keys
from xlt_serve.serving.body import Gone
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.log import Log
from xlt_serve.serving.metrics import metrics
from xlt_serve.serving.routes import PATHS, QUIET, WORK, Key, key_for
from xlt_serve.serving.scheduler import Busy

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")


@dataclass
class Gate:
    """Who may pass; filled in when the service starts, the layer itself is built before that."""

    keys: Keys = field(default_factory=lambda: Keys(()))
    admins: Keys = field(default_factory=lambda: Keys(()))
    refuse_if_full: Callable[[], None] = lambda: None
    log: Log = field(default_factory=Log)

    def refusal(self, scope: Scope) -> Refusal | Busy | None:
        """Why a request may not pass: its path, its key, or, of those that run models, that too much
        waits. In this order: who may not come in is no part of an overload."""
        path, method = scope["path"].rstrip("/") or "/", scope["method"]
        if path not in PATHS:  # routers are laxer: they take "/models\n" for "/models"
            return Refusal(
                404, "not_found", repr(path[:100]), "there is no such path", "see /docs.json"
            )
        if (refused := self._without_key(key_for(method, path), scope)) is not None:
            return refused
        if (method, scope["path"]) in WORK:
            try:
                self.refuse_if_full()
            except Busy as busy:
                return busy
        return None

    def _without_key(self, needed: Key, scope: Scope) -> Refusal | None:
        if not needed:
            return None
        given = keys.given(scope["headers"])
        admin = bool(self.admins) and self.admins.has(given)
        if needed == "admin" and not self.admins:
            return Refusal(
                403, "forbidden", "", "this service has no admin keys", "set XLT_ADMIN_KEYS"
            )
        if admin or (needed == "user" and (not self.keys or self.keys.has(given))):
            return None
        return _unauthorized("an admin key" if needed == "admin" else "a key")


def _unauthorized(what: str) -> Refusal:
    return Refusal(
        401,
        "unauthorized",
        "",
        f"this needs {what}",
        "send it as Authorization: Bearer KEY",
        {"WWW-Authenticate": "Bearer"},
    )


class Guard:
    def __init__(self, app: App, gate: Gate) -> None:
        self.app, self.gate = app, gate
        self._refused, self._tell_at = 0, 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()
        request_id = _request_id(scope)
        refused = self.gate.refusal(scope)
        if isinstance(refused, Busy):
            await self._refuse(refused, scope["path"], request_id, begun, send)
            return
        # Handlers add what they know: bundle, mode, items; the log and the metrics read it.
        known: dict[str, Any] = {"id": request_id}
        scope.setdefault("state", {})["known"] = known
        sent = _Sent(send, request_id)
        measured = metrics()
        measured.in_flight.inc()
        error: BaseException | None = None
        try:
            if refused is not None:
                raise refused
            await self.app(scope, receive, sent)
        except Gone:
            known["gone"] = True
        except Exception as raised:
            error = raised
            if not sent.status:
                await failures.response(raised, request_id)(scope, receive, sent)
        finally:
            measured.in_flight.dec()
            await sent.flush(scope, receive)
            self._record(scope, known, sent, time.perf_counter() - begun, error)

    async def _refuse(
        self, busy: Busy, path: str, request_id: str, begun: float, send: Send
    ) -> None:
        """The shortest way out: in an overload thousands a second take it. The log has a line a second."""
        response = failures.response(busy, request_id)
        headers = [*response.raw_headers, (b"x-request-id", request_id.encode())]
        status = response.status_code
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})
        measured = metrics()
        measured.requests.labels(path, status).inc()
        measured.refused.labels(busy.code).inc()
        measured.seconds.labels(path).observe(time.perf_counter() - begun)
        self._refused += 1
        self._tell()

    def _tell(self) -> None:
        if self._refused and time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + 1
            self.gate.log.write("refused", code=Busy.code, requests=self._refused)
            self._refused = 0

    def _record(
        self,
        scope: Scope,
        known: dict[str, Any],
        sent: _Sent,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        self._tell()
        status = 499 if known.get("gone") else sent.status or 499  # as proxies call it
        path = scope["path"] if scope["path"] in PATHS else "other"
        measured = metrics()
        measured.requests.labels(path, status).inc()
        measured.seconds.labels(path).observe(seconds)
        if status >= 400:
            measured.refused.labels(sent.code or str(status)).inc()
        if error is not None and status >= 500:
            self.gate.log.failure("failure", error, id=known["id"], path=path)
        if path in QUIET and status < 400:
            return
        shown = {name: value for name, value in known.items() if name != "id"}
        self.gate.log.write(
            "request",
            id=known["id"],
            method=scope["method"],
            path=path,
            status=status,
            ms=round(1000 * seconds, 3),
            code=sent.code or None,
            **shown,
        )


class _Sent:
    """Passes a response on with its request id; an error in another shape is held back and remade."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self.request_id = send, request_id
        self.status, self.code = 0, ""
        self._start: Message | None = None
        self._body = b""
        self._over = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ())]
            headers.append((b"x-request-id", self.request_id.encode()))
            message = {**message, "headers": headers}
            if self.status >= 400:
                self._start = message
                return
        elif self._start is not None:
            self._body += message.get("body", b"")
            return
        await self._send(message)

    async def flush(self, scope: Scope, receive: Receive) -> None:
        """Send an error that was held back, in our shape."""
        if self._start is None or self._over:
            return
        self._over = True
        headers = {
            n.decode("latin-1").lower(): v.decode("latin-1") for n, v in self._start["headers"]
        }
        remade = failures.shaped(self.status, self._body, self.request_id, headers)
        self.code = _code(remade.body if remade is not None else self._body)
        if remade is not None:
            remade.headers["x-request-id"] = self.request_id
            await self._whole(remade, scope, receive)
            return
        await self._send(self._start)
        await self._send({"type": "http.response.body", "body": self._body})

    async def _whole(self, response: Response, scope: Scope, receive: Receive) -> None:
        await response(scope, receive, self._send)


def _request_id(scope: Scope) -> str:
    """The client's own if it is a harmless one, so that logs on both sides meet."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _ID.fullmatch(value):
            return str(value.decode())
    return uuid.uuid4().hex


def _code(body: bytes | memoryview) -> str:
    found = re.search(rb'"code": ?"([a-z_]+)"', bytes(body))
    return found.group(1).decode() if found else ""
