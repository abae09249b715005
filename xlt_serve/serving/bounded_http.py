"""HTTP within bounds: uvicorn's protocol over httptools has none for headers, connections and writes.

A client that oversteps one is answered in the one shape of errors, and what it still sends is thrown
away for a while: closed at once, its own writes would fail before it reads the answer. Where there is
no request to answer, the connection is closed. Both are counted.
"""

from __future__ import annotations

import asyncio
import enum
import math
import uuid
from collections.abc import Callable
from functools import cache, partial
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary, ref

import httptools
import uvicorn.config
from starlette.responses import Response
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from xlt_serve.serving import event_loop, failures, settings
from xlt_serve.serving.connections import Connections
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.metrics import metrics
from xlt_serve.serving.routes import OPERATIONS
from xlt_serve.serving.settings import Environment

PIECE = 4096
"""Bytes of a head that the parser gets at once: so many more than allowed may come to be held."""

STEP = 65536
"""Bytes that are parsed before others get their turn."""

CHUNKS, CHUNK = 1000, 64
"""Chunks that a body may have, and the bytes for which it may have one more: each takes its time."""

PIPELINED = 16
"""Requests of a connection that may wait for the answer to an earlier one."""

LAST_WRITE = 5.0
"""Seconds in which a client takes in an answer while the service ends."""

LEAST_RATE = 100_000
"""Bytes a second that a client takes in: so a large answer may take longer than the time for writing."""

UNREAD = 1.0
"""Seconds after which a client that takes in less is held to read nothing: others may have its place."""

LAST_WORD = 1.0
"""Seconds in which a client whose place went to another takes in that it has none."""

PROBES = frozenset(each.path.encode() for each in OPERATIONS if each.quiet and not each.ours)

_servers: WeakKeyDictionary[ServerState, Connections] = WeakKeyDictionary()
_environment = cache(settings.read)


class Phase(enum.Enum):
    """What a connection is about to receive: a head, a body, nothing before its answer, the next
    request, or what will be thrown away."""

    HEAD = enum.auto()
    BODY = enum.auto()
    ANSWER = enum.auto()
    IDLE = enum.auto()
    DEAF = enum.auto()


class Refused(Exception):
    """Raised within the parser, which then ends."""


class BoundedProtocol(HttpToolsProtocol):
    environment: ClassVar[Environment | None] = None
    """None: that of the process."""

    flow: _Flow

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.bounds = self.environment or _environment()
        self.ws_protocol_class = None  # there are no such routes, and they have no such bounds
        if self.server_state not in _servers:
            _servers[self.server_state] = Connections(self.bounds, self.loop)
        self._others = _servers[self.server_state]
        self._door = _door_of(self.app)
        self._phase = Phase.HEAD
        self._deadline: float | None = None
        self._patience = self.bounds.write_timeout
        self._unsent_since: float | None = None
        self._written = self._sent_before = 0  # bytes of answers; those that the client had by then
        self._least_rate: float = LEAST_RATE
        self._place: bool | None = True
        self._wrong: tuple[str, Refusal] | None = None
        self._calls = 0  # of the parser to us
        self._rest = memoryview(b"")  # that came and was not parsed yet
        self._turned = 0  # away at the door, of what came at once
        self._silent = self._head_bytes = self._head_count = self._dropped = 0
        self._chunks = self._chunk_bytes = 0

    # What asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._place = self._others.enter(self, self.client[0] if self.client else "")
        if self._place is None:
            self._count("connections")
            self._write(_crowded())
            transport.close()
            return
        self._expect(Phase.HEAD, self.bounds.header_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.leave(self)
        self._rest = memoryview(b"")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.flow.held:  # it was on its way when reading was paused
            self._rest = memoryview(bytes(self._rest) + data)
            return
        self._rest = memoryview(data)
        self._go_on()

    def _go_on(self) -> None:
        """Parse what came, so much at once that others need not wait for it."""
        left, self._turned = STEP, 0
        while self._rest and left > 0 and self._phase is not Phase.DEAF:
            if self._phase is Phase.IDLE:
                self._expect(Phase.HEAD, self.bounds.header_timeout)
            length = PIECE if self._phase is Phase.HEAD else left
            piece, self._rest = self._rest[:length], self._rest[length:]
            left -= len(piece)
            if self._phase is Phase.BODY and self.cycle.response_complete:
                self._drop(len(piece))
            self._parse(piece)
        if self._rest and self._phase is not Phase.DEAF:
            self.flow.hold()
            self.loop.call_soon(self._go_on)
            return
        self._drop(len(self._rest))
        self._rest = memoryview(b"")
        if not self.transport.is_closing():
            self.flow.let_go()

    def _parse(self, piece: memoryview) -> None:
        before = self._calls
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._answer_last()
        except httptools.HttpParserError:
            self._refuse(*(self._wrong or ("malformed", _malformed())))
        else:
            # Of a line that has not ended the parser tells nothing, but keeps it.
            self._silent = self._silent + len(piece) if self._calls == before else 0
            if self._head_bytes + self._silent > self.bounds.max_header_bytes:
                self._refuse("header_bytes", self._too_long())

    def look(self, now: float) -> None:
        if self._deadline is not None and now > self._deadline:
            self._expired()
        unsent = self.transport.get_write_buffer_size()
        sent = self._written - unsent
        if not unsent:
            self._unsent_since = None
            self._others.read(self)
        elif self._unsent_since is None:
            self._unsent_since, self._sent_before = now, sent
        elif (seconds := now - self._unsent_since) > min(UNREAD, self._patience):
            slow = sent - self._sent_before < self._least_rate * seconds
            if slow:
                self._others.unread(self)
            else:
                self._others.read(self)
            if seconds > self._patience:
                if slow:
                    self._cut("write_time")
                self._unsent_since, self._sent_before = now, sent

    def evict(self) -> None:
        """Who sends a body is told why, if that goes without waiting for it."""
        asked = self._phase is Phase.BODY and not self.pipeline and not self.cycle.response_started
        if not asked or self.transport.get_write_buffer_size():
            self._cut("connections")
            return
        self._count("connections")
        self._phase, self._deadline = Phase.DEAF, None
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        self._write(_crowded())
        self.transport.close()
        self.loop.call_later(LAST_WORD, self.transport.abort)  # it has no place any more

    def shutdown(self) -> None:
        self._patience, self._least_rate = min(self._patience, LAST_WRITE), math.inf
        super().shutdown()

    # What the parser calls.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._calls += 1
        self._head_bytes = self._head_count = self._chunks = self._chunk_bytes = 0
        if self._phase is not Phase.HEAD:  # a pipelined one
            self._expect(Phase.HEAD, self.bounds.header_timeout)
        # uvicorn takes a proxy's word for the address where the peer is this machine.
        self.scope["state"]["peer"] = self.client[0] if self.client else ""

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._calls += 1
        self._lengthen(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is Phase.HEAD:  # a trailer must not change what was let in
            super().on_header(name, value)
        self._calls += 1
        self._head_count += 1
        if self._head_count > self.bounds.max_headers:
            self._stop("header_count", self._too_many())
        self._lengthen(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        self._calls += 1
        if self._place is False and self.url.partition(b"?")[0] not in PROBES:
            self._stop("connections", _crowded())
        if len(self.pipeline) >= PIPELINED:
            self._stop("pipelined", _malformed())
        super().on_headers_complete()
        close = partial(self._close, ref(self.cycle))  # which must not keep itself
        self.cycle.transport = cast(Any, _Gentle(self._send, self.transport, close))
        if not self._place:
            self.cycle.keep_alive = False
        self._expect(
            Phase.BODY, self.bounds.drain_timeout if self.cycle.response_complete else None
        )

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Who is refused at the door gets its answer at once, and stays connected."""
        answer = self._turned_away(cycle, app)
        if answer is None:
            super()._start_asgi_task(cycle, app)
            if entry := cycle.scope["state"].pop("entry", None):
                self.loop.call_soon(entry.ends)  # behind the task's first step
            return
        self._turned += 1
        cycle.response_started = cycle.response_complete = True
        self.server_state.total_requests += 1
        self._send(self._bytes(answer))

    def _turned_away(self, cycle: RequestResponseCycle, app: Any) -> Response | None:
        """The door's answer, if there is one, and the client stays and reads. Many in a row wait for their
        turn like all that is pipelined."""
        stays = cycle is self.cycle and cycle.keep_alive and not self.parser.should_upgrade()
        reads = not self.flow.write_paused and self._turned < PIPELINED
        if self._door is None or app is not self.app or not (stays and reads and self._place):
            return None
        try:
            return self._door(cycle.scope)
        except Exception:
            self.logger.exception("the door failed; the request goes in")
            cycle.scope["state"].pop("refusal", None)
            return None

    def on_chunk_header(self) -> None:
        self._calls += 1
        self._chunks += 1
        if self._chunks > CHUNKS + self._chunk_bytes // CHUNK:
            self._stop("chunks", _too_many_chunks())

    def on_body(self, body: bytes) -> None:
        self._calls += 1
        self._chunk_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._calls += 1
        super().on_message_complete()
        if self.cycle.response_complete:
            self._expect(Phase.IDLE, self.bounds.idle_timeout)
        else:
            self._expect(Phase.ANSWER, None)

    # What the answer calls.

    def on_response_complete(self) -> None:
        self._unsent_since = None
        if self._phase is Phase.DEAF and self._deadline is not None:
            return
        super().on_response_complete()
        self._unset_keepalive_if_required()  # idle times are among those that ``look`` sees
        if self.transport.is_closing() or not self.cycle.response_complete:
            return
        if self._phase is Phase.ANSWER:
            self._expect(Phase.IDLE, self.bounds.idle_timeout)
        elif self._phase is Phase.BODY:  # the rest is thrown away, then the next request may come
            self._expect(Phase.BODY, self.bounds.drain_timeout)

    def _send(self, data: bytes) -> None:
        self._written += len(data)
        self.transport.write(data)

    def _close(self, cycle: ref[RequestResponseCycle]) -> None:
        """The answer was the last: close, but not on a client that still sends. One that ends in the
        middle is of no use: to send what there is of it might take long."""
        if (one := cycle()) is not None and not one.response_complete:
            self.abort()
        elif self._phase in (Phase.BODY, Phase.DEAF):
            self._linger()
        else:
            self.transport.close()

    # Bounds.

    def _expect(self, phase: Phase, seconds: float | None) -> None:
        self._phase = phase
        if phase is Phase.IDLE:
            self._dropped = 0
        self._deadline = None if seconds is None else self.loop.time() + seconds
        if phase is Phase.HEAD or (phase is Phase.BODY and seconds is None):
            self._others.comes(self)
        elif seconds is not None:
            self._others.idle(self)
        else:
            self._others.busy(self)

    def _lengthen(self, length: int) -> None:
        self._head_bytes += length
        if self._head_bytes > self.bounds.max_header_bytes:
            self._stop("header_bytes", self._too_long())

    def _stop(self, reason: str, refusal: Refusal) -> None:
        self._wrong = (reason, refusal)
        raise Refused

    def _expired(self) -> None:
        if self._phase is Phase.IDLE:
            self._deadline = None
            self.transport.close()
        elif self._phase is not Phase.HEAD:
            self._cut("drain_time")
        elif self._calls or self._silent:
            self._refuse("header_time", self._too_slow())
        else:
            self._cut("header_time")

    def _drop(self, length: int) -> None:
        self._dropped += length
        if self._dropped > self.bounds.max_drain and not self.transport.is_closing():
            self._cut("drain_bytes")

    def _cut(self, reason: str) -> None:
        self._count(reason)
        self.abort()

    def abort(self) -> None:
        """At once, without a word."""
        self._phase, self._deadline = Phase.DEAF, None
        self.transport.abort()

    def _count(self, reason: str) -> None:
        metrics().cut.labels(reason).inc()

    def _refuse(self, reason: str, refusal: Refusal) -> None:
        """Answer the request that is being received, if it is this one's turn."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._phase is not Phase.BODY or self.pipeline:  # an earlier one is being answered
                self._count(reason)
                self._answer_last()
                return
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self._cut(reason)
                return
        elif self._phase is Phase.BODY:  # it has its answer
            self._cut(reason)
            return
        self._count(reason)
        self._write(refusal)
        self._linger()

    def _answer_last(self) -> None:
        """Answer what was received, in its order, and close."""
        if self.cycle.response_complete:
            self._linger()
            return
        self.cycle.keep_alive = False
        self._expect(Phase.DEAF, None)

    def _write(self, refusal: Refusal) -> None:
        request_id = uuid.uuid4().hex
        response = failures.response(refusal, request_id)
        response.raw_headers += [
            (b"x-request-id", request_id.encode()),
            (b"connection", b"close"),
        ]
        self.transport.write(self._bytes(response))
        measured = metrics()
        measured.requests.labels("other", response.status_code).inc()
        measured.refused.labels(refusal.code).inc()

    def _bytes(self, response: Response) -> bytes:
        lines = [STATUS_LINE[response.status_code][:-2]]
        headers = [*self.server_state.default_headers, *response.raw_headers]
        lines += [name + b": " + value for name, value in headers]
        return b"\r\n".join(lines) + b"\r\n\r\n" + bytes(response.body)

    def _linger(self) -> None:
        if self.transport.is_closing():
            return
        self._expect(Phase.DEAF, self.bounds.drain_timeout)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()

    def _too_long(self) -> Refusal:
        most = self.bounds.max_header_bytes
        return Refusal(431, "headers_too_large", "", f"headers may have {most} bytes", "send less")

    def _too_many(self) -> Refusal:
        most = self.bounds.max_headers
        return Refusal(431, "too_many_headers", "", f"a request may have {most} headers")

    def _too_slow(self) -> Refusal:
        longest = self.bounds.header_timeout
        return Refusal(408, "slow_headers", "", f"headers did not come within {longest:g} s")


class _Flow(FlowControl):
    """uvicorn's, which leaves the reading alone while there is something left to parse."""

    held = paused = False

    def pause_reading(self) -> None:
        self.paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        self.paused = False
        if not self.held:
            super().resume_reading()

    def hold(self) -> None:
        self.held = True
        super().pause_reading()

    def let_go(self) -> None:
        if self.held:
            self.held = False
            if not self.paused:
                super().resume_reading()


class _Gentle:
    """The transport as an answer sees it: its ``close`` leaves the client time to read."""

    def __init__(self, write: Any, transport: asyncio.Transport, close: Any) -> None:
        self.write, self.is_closing, self.close = write, transport.is_closing, close


def _door_of(app: Any) -> Callable[[Any], Response | None] | None:
    """What the application has under ``state.at_the_door``, within the layers that uvicorn adds."""
    while app is not None:
        state = getattr(app, "state", None)
        if (door := getattr(state, "at_the_door", None)) is not None:
            return cast(Callable[[Any], Response | None], door)
        app = getattr(app, "app", None)
    return None


def _malformed() -> Refusal:
    return Refusal(400, "malformed", "", "this is no HTTP request")


def _too_many_chunks() -> Refusal:
    rule = f"a body may have {CHUNKS} chunks, and one more for each {CHUNK} bytes"
    return Refusal(413, "too_many_chunks", "", rule, "send larger chunks")


def _crowded() -> Refusal:
    return Refusal(
        503,
        "crowded",
        "",
        "the service has as many connections as it may",
        "try again in 1 s",
        {"Retry-After": "1"},
    )


def install() -> None:
    """Have uvicorn use it, whoever configures uvicorn: BentoML leaves it the choice ("auto")."""
    for name in ("auto", "httptools"):
        uvicorn.config.HTTP_PROTOCOLS[name] = f"{__name__}:{BoundedProtocol.__name__}"
    uvicorn.config.LOOP_FACTORIES["auto"] = f"{event_loop.__name__}:{event_loop.factory.__name__}"
