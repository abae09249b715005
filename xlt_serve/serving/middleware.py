"""The outermost layer: request ids, keys, one shape of errors, a line in the log, metrics.

Plain ASGI, so that bodies stream and a client that leaves is noticed within.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from xlt_serve.serving import auth as keys
from xlt_serve.serving import clients, failures
from xlt_serve.serving.admission import Busy, Entry
from xlt_serve.serving.auth import KeyPolicy, Keys
from xlt_serve.serving.body import Gone
from xlt_serve.serving.clients import Network
from xlt_serve.serving.cors import Headers, Origins
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.log import Log
from xlt_serve.serving.metrics import metrics
from xlt_serve.serving.routes import METHODS, PATHS, QUIET, WORK, key_for
from xlt_serve.serving.settings import Environment

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LONGEST_ID = 64
"""Characters of a request id that a client chooses; else the service makes one."""

_ID = re.compile(rb"[A-Za-z0-9._:-]{1,%d}" % LONGEST_ID)


@dataclass
class Gate:
    """Who may pass; filled in when the service starts, the layer itself is built before that."""

    policy: KeyPolicy = field(default_factory=KeyPolicy)
    proxies: tuple[Network, ...] = ()
    local: bool = False
    origins: Origins = field(default_factory=Origins)
    refuse_if_full: Callable[[str], None] = lambda client: None
    enters: Callable[[str], Entry | None] = lambda client: None
    log: Log = field(default_factory=Log)
    _turned_away: int = 0  # and not told yet
    _tell_at: float = 0.0

    def obey(self, told: Environment) -> None:
        self.policy = KeyPolicy(Keys(told.keys), Keys(told.admin_keys), Keys(told.scrape_keys))
        self.proxies, self.origins = told.proxies, Origins(told.origins)
        # A proxy on this machine passes on what comes from outside.
        self.local = clients.is_loopback(told.host) and not told.proxies

    def at_the_door(self, scope: Scope) -> Response | None:
        """The answer where too much waits, before a task is made of the request: in an overload
        thousands a second take this way out. ``Guard`` sees to all else, and need not look again."""
        begun = time.perf_counter()
        refused = self.refusal(scope)
        if isinstance(refused, Refusal):  # it may yet be one that needs no key
            scope["state"]["refusal"] = refused
            return None
        state: dict[str, Any] = scope["state"]
        state["refusal"] = None
        if refused is None:
            if (scope["method"], scope["path"]) in WORK:
                state["entry"] = self.enters(state["client"])
            return None
        response = self.turned_away(refused, scope, _request_id(scope), begun)
        if self.origins:
            response.raw_headers.extend(self.origins.added(scope["headers"]))
        return response

    def turned_away(self, busy: Busy, scope: Scope, request_id: str, begun: float) -> Response:
        """As short as it can be. The log has a line a second."""
        response = failures.response(busy, request_id)
        response.raw_headers.append((b"x-request-id", request_id.encode()))
        path, measured = scope["path"], metrics()
        measured.requests.labels(path, response.status_code).inc()
        measured.refused.labels(busy.code).inc()
        measured.seconds.labels(path).observe(time.perf_counter() - begun)
        self._turned_away += 1
        self.tell()
        return response

    def tell(self) -> None:
        if self._turned_away and time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + 1
            self.log.write("refused", code=Busy.code, requests=self._turned_away)
            self._turned_away = 0

    def refusal(self, scope: Scope) -> Refusal | Busy | None:
        """Why a request may not pass: its path, its key, its method, or, of those that run models, that
        too much waits. In this order: who may not come in is no part of an overload. One that passes
        knows whose it is: ``scope["state"]["client"]``."""
        path, method, headers = scope["path"], scope["method"], scope["headers"]
        if path not in PATHS:  # routers are laxer: "/models\n", or "/models/" by way of a redirect
            known = path.rstrip("/") in PATHS
            remedy = "leave out the slash at its end" if known else "see /docs.json"
            return Refusal(404, "not_found", repr(path[:100]), "there is no such path", remedy)
        try:
            local = self.local and clients.is_loopback((scope.get("server") or ("",))[0])
            needed = "" if scope["state"].get("trusted") else key_for(method, path)
            holder = self.policy.holder(needed, keys.given(headers), local)
            client = clients.client_of(holder, _peer(scope), headers, self.proxies)
            scope["state"]["client"] = client
            if method not in METHODS[path]:
                return _not_allowed(method, METHODS[path])
            if (method, path) in WORK:
                self.refuse_if_full(client)
        except (Refusal, Busy) as refused:
            return refused
        return None

    def preflight(self, scope: Scope) -> Response | None:
        """The answer to a browser that asks what another's page may send here."""
        if not self.origins or scope["path"] not in METHODS:
            return None
        takes = METHODS[scope["path"]]
        found = self.origins.preflight(scope["method"], scope["headers"], takes)
        if found is None:
            return None
        response = Response(status_code=204)
        response.raw_headers.extend(found)
        return response


def _not_allowed(method: str, known: Sequence[str]) -> Refusal:
    listed = ", ".join(known)
    rule = "this path does not take it"
    return Refusal(
        405, "method_not_allowed", method[:20], rule, f"send {listed}", {"Allow": listed}
    )


def _peer(scope: Scope) -> str:
    """The address at the other end. uvicorn's own (``client``) is what the headers of anybody on this
    machine say."""
    state: dict[str, Any] = scope["state"]
    found: str = state["peer"] if "peer" in state else (scope.get("client") or ("",))[0]
    return found


class Guard:
    def __init__(self, app: App, gate: Gate) -> None:
        self.app, self.gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()
        request_id = _request_id(scope)
        scope.setdefault("state", {})
        if self.gate.origins:
            send = _with(self.gate.origins.added(scope["headers"]), send)
        answer = self.gate.preflight(scope)
        if "refusal" in scope["state"]:  # the door has looked
            refused = scope["state"].pop("refusal")
        else:
            refused = self.gate.refusal(scope)
        if answer:
            refused = None
        if isinstance(refused, Busy):
            await self.gate.turned_away(refused, scope, request_id, begun)(scope, receive, send)
            return
        # Handlers add what they know: bundle, mode, items; the log and the metrics read it.
        known: dict[str, Any] = {"id": request_id}
        scope["state"]["known"] = known
        sent = _Sent(send, request_id)
        measured = metrics()
        measured.in_flight.inc()
        error: BaseException | None = None
        try:
            if refused is not None:
                raise refused
            await (answer or self.app)(scope, receive, sent)
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

    def _record(
        self,
        scope: Scope,
        known: dict[str, Any],
        sent: _Sent,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        self.gate.tell()
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
            method=scope["method"][:20],
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


def _with(added: Headers, send: Send) -> Send:
    """``send``, which adds headers to an answer."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return sending


def _request_id(scope: Scope) -> str:
    """The client's own if it is a harmless one, so that logs on both sides meet."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _ID.fullmatch(value):
            return str(value.decode())
    return uuid.uuid4().hex


def _code(body: bytes | memoryview) -> str:
    found = re.search(rb'"code": ?"([a-z_]{1,40})"', bytes(body))
    return found.group(1).decode() if found else ""
