"""Raw sockets against the bounds of HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import resource
import select
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http import httptools_impl

from tests.xlt_serve.serving.sockets import Heard, Listening, answers, heard, listening
from xlt_serve.serving import bounded_http, clients, connections, event_loop
from xlt_serve.serving.bounded_http import BoundedProtocol
from xlt_serve.serving.connections import Connections
from xlt_serve.serving.metrics import metrics
from xlt_serve.serving.middleware import Receive, Scope, Send
from xlt_serve.serving.settings import Environment

GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
LARGE = 8_000_000


class Held:
    arrived = 0
    over = threading.Event()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """``/echo``: the length of the body; ``/refuse``: 401, body unread; ``/large``: much; ``/pieces``: as
    much, as the client takes it in; ``/slow``; ``/held``: until the test lets it go."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})
        return
    status, headers, body = 200, [], b"ok"
    if scope["path"] == "/echo":
        length, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            length, more = length + len(message["body"]), message["more_body"]
        body = str(length).encode()
    elif scope["path"] in ("/large", "/pieces"):
        body = b"x" * LARGE
    elif scope["path"] == "/slow":
        await asyncio.sleep(0.2)
    elif scope["path"] == "/held":
        Held.arrived += 1
        while not Held.over.is_set():
            await asyncio.sleep(0.01)
    elif scope["path"].startswith("/refuse"):
        status = 401
        if scope["path"] == "/refuse-and-close":
            headers.append((b"connection", b"close"))
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    while scope["path"] == "/pieces" and body:
        await send({"type": "http.response.body", "body": body[:65536], "more_body": True})
        body = body[65536:]
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def server() -> Iterator[Listening]:
    with listening(app) as made:
        yield made


@pytest.fixture(scope="module")
def hasty() -> Iterator[Listening]:
    with listening(app, header_timeout=1.0) as made:
        yield made


def cut(reason: str) -> float:
    return float(metrics().cut.labels(reason)._value.get())


@contextlib.contextmanager
def counted(reason: str, times: int = 1) -> Iterator[None]:
    before = cut(reason)
    yield
    until(lambda: cut(reason) >= before + times)
    assert cut(reason) == before + times


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def one(found: list[Heard]) -> Heard:
    (only,) = found
    assert only.headers["connection"] == "close"
    return only


def test_requests_within_bounds_are_served_on_one_connection(server: Listening) -> None:
    with server.client() as client:
        for _ in range(3):
            client.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
            (got,) = answers(client.recv(4096))
            assert (got.status, got.body) == (200, b"5")


@pytest.mark.parametrize(
    "parts",
    [
        [GET + b"".join(b"X-%d: %s\r\n" % (n, b"a" * 400) for n in range(50)) + b"\r\n"],
        [GET, b"X-A: " + b"a" * 30_000],
        [GET, *[b"X-Long-Name" * 100] * 40],
        [b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"],
        [b"\r\n" * 20_000],
        [GET + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", *[b"X: " + b"a" * 900 + b"\r\n"] * 30],
    ],
    ids=["many long ones", "one value", "one name", "a path", "empty lines", "trailers"],
)
def test_headers_over_their_bytes_are_answered_431(server: Listening, parts: list[bytes]) -> None:
    parts = [part.replace(b"GET /livez", b"POST /echo") for part in parts]
    with counted("header_bytes"):
        got = one(server.said(*parts))
    assert (got.status, got.error()) == (431, "headers_too_large")


def test_an_endless_head_takes_no_memory(server: Listening) -> None:
    """The answer is read although 20 MB more were sent after it."""
    with counted("header_bytes"):
        got = one(server.said(GET, *[(b"X-A: " + b"a" * 995) * 1000] * 20))
    assert got.status == 431


def test_a_head_of_exactly_the_bytes_passes(server: Listening) -> None:
    known = len("/livez") + len("Host: x\r\n") + len("Connection: close\r\n") + len("X-A: \r\n")
    for more, status in ((0, 200), (1, 431)):
        fill = b"a" * (16_384 - known + more)
        got = one(server.said(GET + b"Connection: close\r\nX-A: " + fill + b"\r\n\r\n"))
        assert got.status == status


def test_too_many_headers_are_answered_431(server: Listening) -> None:
    with counted("header_count"):
        got = one(server.said(GET + b"A: b\r\n" * 100 + b"\r\n"))
    assert (got.status, got.error()) == (431, "too_many_headers")


@pytest.mark.parametrize("drips", [0, 100])
def test_a_head_that_does_not_end_is_answered_408(hasty: Listening, drips: int) -> None:
    """Whatever more comes of it: each drip before the answer."""
    with counted("header_time"), hasty.client() as client:
        client.sendall(GET)
        for _ in range(drips):
            if select.select([client], [], [], 0.1)[0]:
                break
            client.sendall(b"X-A: a\r\n")
        else:
            assert not drips, "drips put it off"
        got = one(heard(client))
    assert (got.status, got.error()) == (408, "slow_headers")


def test_a_later_head_has_the_same_time(hasty: Listening) -> None:
    with counted("header_time"), hasty.client() as client:
        client.sendall(GET + b"\r\n")
        assert answers(client.recv(4096))[0].status == 200
        client.sendall(b"GET ")
        assert one(heard(client)).status == 408


def test_silence_is_closed_without_an_answer(hasty: Listening) -> None:
    with counted("header_time"), hasty.client() as client, contextlib.suppress(ConnectionError):
        assert client.recv(1) == b""
    with listening(app, idle_timeout=0.2) as server, server.client() as client:
        client.sendall(GET + b"\r\n")
        assert len(heard(client)) == 1  # then it is idle, and closed


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET  HTTP/1.1\r\n\r\n",
        GET + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        GET + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET http:// HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http_has_the_one_error_body(server: Listening, sent: bytes) -> None:
    with counted("malformed"):
        got = one(server.said(sent))
    assert (got.status, got.error()) == (400, "malformed")


def test_a_wrong_request_behind_a_good_one_leaves_it_its_answer(server: Listening) -> None:
    got = one(server.said(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\nnonsense\r\n\r\n"))
    assert (got.status, got.body) == (200, b"ok")


def test_pipelined_requests_are_answered_in_order_up_to_a_depth(server: Listening) -> None:
    asked = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n" + (GET + b"\r\n") * 100
    with counted("pipelined"):
        got = server.said(asked)
    assert {each.status for each in got} == {200}
    assert len(got) == 1 + bounded_http.PIPELINED
    assert got[-1].headers["connection"] == "close"


def test_an_upgrade_is_answered_as_a_plain_request(server: Listening) -> None:
    asked = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\nabc"
    assert one(server.said(GET + asked)).status == 200


@pytest.mark.parametrize("path", [b"/refuse", b"/refuse-and-close"])
def test_an_answer_before_the_body_is_read_by_who_sends_on(path: bytes) -> None:
    with listening(app, idle_timeout=0.2) as server, server.client() as client:
        client.sendall(
            b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n"
        )
        for _ in range(10):
            client.sendall(b"x" * 1_000_000)
        (got,) = heard(client)
    assert got.status == 401


def test_what_is_thrown_away_has_an_end() -> None:
    asked = b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n"
    with (
        listening(app, max_drain=1_000_000) as server,
        counted("drain_bytes"),
        contextlib.suppress(ConnectionError),
        server.client() as client,
    ):
        client.sendall(asked)
        for _ in range(9):
            client.sendall(b"x" * 1_000_000)
    with (
        listening(app, drain_timeout=0.3) as server,
        counted("drain_time"),
        contextlib.suppress(ConnectionError),
        server.client() as client,
    ):
        client.sendall(asked)
        for _ in range(1000):  # as long as there is somebody
            client.sendall(b"x")
            time.sleep(0.02)


def test_expect_100_continue(server: Listening) -> None:
    with server.client() as client:
        client.sendall(
            b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert client.recv(100).startswith(b"HTTP/1.1 100 ")
        client.sendall(b"hi")
        assert answers(client.recv(4096))[0].body == b"2"


GET_LARGE = b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def test_a_client_that_does_not_read_is_cut_off(server: Listening) -> None:
    with listening(app, write_timeout=0.3) as strict, strict.client(receive_buffer=4096) as client:
        with counted("write_time"):
            client.sendall(GET_LARGE)
        length = 0
        with contextlib.suppress(ConnectionError):
            while got := client.recv(1_000_000):
                length += len(got)
    assert length < LARGE
    with server.client() as client:
        client.sendall(GET_LARGE)
        (whole,) = heard(client)
    assert len(whole.body) == LARGE


def test_a_client_that_reads_slowly_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it reads, however much longer than the time for writing it takes."""
    monkeypatch.setattr(bounded_http, "LEAST_RATE", 1000)
    with listening(app, write_timeout=1.0) as server, server.client() as client:
        client.sendall(GET_LARGE)
        begun, got = time.monotonic(), 0
        while piece := client.recv(200_000):
            got += len(piece)
            time.sleep(0.04 if time.monotonic() - begun < 2.5 else 0)
    assert got > LARGE
    assert time.monotonic() - begun > 1


def test_a_client_that_does_not_read_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded_http, "LAST_WRITE", 0.2)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(listening(app, write_timeout=60.0))
        for _ in range(3):
            client = stack.enter_context(server.client(receive_buffer=4096))
            client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(1) == b"H"  # its answer has begun
        begun = time.monotonic()
        with counted("write_time", 3):
            server.server.should_exit = True
    assert time.monotonic() - begun < 30


def test_idle_connections_make_room_for_new_ones() -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(listening(app, max_connections=5, header_timeout=30.0))
        stack.enter_context(counted("connections", 8))
        for _ in range(12):
            stack.enter_context(server.client())
        assert one(server.said(GET + b"Connection: close\r\n\r\n")).status == 200


def test_where_all_are_busy_there_is_503_and_room_for_probes() -> None:
    with listening(app, max_connections=3) as server, contextlib.ExitStack() as stack:
        stack.callback(Held.over.set)
        for _ in range(3):
            busy = stack.enter_context(server.client())
            busy.sendall(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: Held.arrived == 3)
        got = one(server.said(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"))
        assert (got.status, got.error(), got.headers["retry-after"]) == (503, "crowded", "1")
        assert one(server.said(GET + b"\r\n")).status == 200
        for _ in range(connections.RESERVE):
            busy = stack.enter_context(server.client())
            busy.sendall(b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")


HALF = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"


def test_half_sent_bodies_take_no_place_from_whole_requests() -> None:
    """One after the other they drive each other out, and are told so."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(listening(app, max_connections=10, idle_timeout=0.3))
        stack.enter_context(counted("connections", 21))
        halves = [stack.enter_context(server.client()) for _ in range(30)]
        for half in halves:
            half.sendall(HALF)
            time.sleep(0.005)
        assert one(server.said(GET + b"Connection: close\r\n\r\n")).status == 200
        got = one(heard(halves[-10]))
        assert (got.status, got.error()) == (503, "crowded")
        halves[-1].sendall(b"x" * 99)  # the others go on
        assert heard(halves[-1])[0].body == b"100"


def entered(asked: Connections, peer: str) -> Recorded:
    made = Recorded(asked)
    made.place = asked.enter(made, peer)
    asked.comes(made)
    return made


class Recorded:
    """A connection that knows only whether it is there."""

    def __init__(self, among: Connections) -> None:
        self.among, self.there, self.place = among, True, cast("bool | None", None)

    def evict(self) -> None:
        self.there = False

    def look(self, now: float) -> None:
        pass


def crowd(**told: Any) -> Connections:
    loop = cast(asyncio.AbstractEventLoop, types.SimpleNamespace(call_later=lambda *_: None))
    return Connections(replace(Environment({}, max_connections=100), **told), loop)


def test_an_address_with_many_connections_takes_no_place_from_others() -> None:
    among = crowd()
    other = entered(among, "192.0.2.1")
    many = [entered(among, "198.51.100.7") for _ in range(1000)]
    assert other.there
    assert sum(each.there for each in many) == 99
    newcomers = [entered(among, f"192.0.2.{n}") for n in range(2, 52)]
    assert all(each.place and each.there for each in (other, *newcomers))
    # All of its connections are busy: it gets no further place at the cost of others.
    for each in many:
        among.busy(each)
    assert entered(among, "198.51.100.7").place is False
    assert all(each.there for each in (other, *newcomers))


def test_an_address_that_reads_no_answers_takes_no_place_from_others() -> None:
    among = crowd()
    others = [entered(among, f"192.0.2.{n}") for n in range(10)]
    greedy = [entered(among, "198.51.100.7") for _ in range(90)]
    for each in greedy:
        among.busy(each)
        among.unread(each)
    for n in range(100):
        others.append(entered(among, f"203.0.113.{n % 70}"))
        among.leave(others.pop(5))  # it comes and goes
        entered(among, "198.51.100.7")
    assert all(each.place and each.there for each in others)
    assert sum(each.there for each in greedy) < 90


def test_who_waits_otherwise_or_reads_on_is_not_among_those_who_read_nothing() -> None:
    among = crowd()
    idle, busy = entered(among, "192.0.2.1"), entered(among, "192.0.2.2")
    among.idle(idle)
    among.busy(busy)
    for each in (idle, busy):
        among.unread(each)
    assert list(among._waiting()) == [idle, busy]
    among.read(busy)
    assert list(among._waiting()) == [idle]
    among.unread(busy)
    among.leave(busy)
    assert list(among._waiting()) == [idle]


def test_two_greedy_addresses_without_one_that_waits_drive_out_nobody() -> None:
    among = crowd()
    other = entered(among, "192.0.2.1")
    for number in range(99):
        among.busy(entered(among, f"198.51.100.{number % 2}"))
    for number in range(2):
        assert entered(among, f"198.51.100.{number}").place is False
    assert other.there
    assert entered(among, "192.0.2.2").place


@pytest.mark.parametrize(("rate", "unread"), [(50_000, True), (200_000, False)])
def test_who_takes_in_an_answer_too_slowly_counts_as_one_who_waits(rate: int, unread: bool) -> None:
    among = crowd()
    reader = object.__new__(BoundedProtocol)
    among.enter(reader, "192.0.2.1")
    buffered = 1_000_000
    reader.transport = cast(Any, types.SimpleNamespace(get_write_buffer_size=lambda: buffered))
    reader._others, reader._deadline, reader._unsent_since = among, None, None
    reader._written, reader._patience, reader._least_rate = buffered, 30.0, bounded_http.LEAST_RATE
    for quarter in range(40):
        reader.look(quarter / 4)
        assert (reader in among._waiting()) == (unread and quarter > 4)
        reader._written += rate // 4  # each byte that is read makes room for another
    buffered = 0
    reader.look(11)
    assert reader not in among._waiting()


def test_who_does_not_read_loses_its_place_to_others() -> None:
    asked = b"GET /pieces HTTP/1.1\r\nHost: x\r\n\r\n"
    with (
        listening(app, max_connections=3, write_timeout=200.0) as server,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(3):
            client = stack.enter_context(server.client(receive_buffer=4096))
            client.sendall(asked)
            assert client.recv(1) == b"H"
        whole = asked[:-2] + b"Connection: close\r\n\r\n"
        until(lambda: one(server.said(whole)).status == 200)
        assert len(one(server.said(whole)).body) == LARGE


def test_of_many_addresses_the_oldest_goes_whatever_has_come_of_its_request() -> None:
    among = crowd()
    halves = [entered(among, f"10.0.0.{n}") for n in range(100)]
    among.idle(halves[50])
    newcomers = [entered(among, f"10.0.1.{n}") for n in range(10)]
    assert [n for n, half in enumerate(halves) if not half.there] == [*range(9), 50]
    assert all(each.there for each in newcomers)


def test_a_proxy_has_the_connections_of_many() -> None:
    among = crowd(proxies=clients.networks(["10.0.0.1"]))
    proxied = [entered(among, "10.0.0.1") for _ in range(60)]
    greedy = [entered(among, "198.51.100.7") for _ in range(60)]
    assert all(each.there for each in proxied)
    assert sum(each.there for each in greedy) == 40


def test_a_connection_that_can_not_be_looked_at_ends_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, look = list[dict[str, Any]](), BoundedProtocol.look
    broken = list[BoundedProtocol]()

    def failing(self: BoundedProtocol, now: float) -> None:
        if not broken:
            broken.append(self)
            self.loop.set_exception_handler(lambda _, context: told.append(context))
        if self in broken:
            raise ValueError("broken")
        look(self, now)

    monkeypatch.setattr(BoundedProtocol, "look", failing)
    with listening(app, header_timeout=1.0) as server, server.client() as one_of_two:
        one_of_two.settimeout(10)
        with counted("connections"), contextlib.suppress(ConnectionError):
            assert one_of_two.recv(1) == b""
        with counted("header_time"), server.client() as other, contextlib.suppress(ConnectionError):
            other.settimeout(10)
            assert other.recv(1) == b""
    assert [str(each["exception"]) for each in told] == ["broken"]


def chunked(chunk: bytes, times: int, more: bytes = b"") -> bytes:
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    return head + more + b"\r\n" + (b"%x\r\n%s\r\n" % (len(chunk), chunk)) * times + b"0\r\n\r\n"


def test_absurdly_many_chunks_are_answered_413(server: Listening) -> None:
    with counted("chunks"):
        got = one(server.said(chunked(b"x", 200_000)))
    assert (got.status, got.error()) == (413, "too_many_chunks")
    for chunk, times in ((b"x", 900), (b"x" * 64, 30_000)):
        got = one(server.said(chunked(chunk, times, b"Connection: close\r\n")))
        assert (got.status, got.body) == (200, str(len(chunk) * times).encode())


def test_others_get_their_turn_while_much_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: Counter[int] = Counter()
    turn = 0
    parse = BoundedProtocol._parse

    def ticking(loop: asyncio.AbstractEventLoop) -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(ticking, loop)

    def counting(self: BoundedProtocol, piece: memoryview) -> None:
        if not turn:
            ticking(self.loop)
        turns[turn] += len(piece)
        parse(self, piece)

    monkeypatch.setattr(BoundedProtocol, "_parse", counting)
    with listening(app) as server, server.client() as client:
        asked = chunked(b"x" * 1000, 4000)
        client.sendall(asked + asked)
        got = b""
        while got.count(b"4000000") < 2:
            got += client.recv(4096)
    assert sum(turns.values()) == 2 * len(asked)
    # At most the rest of one read, and the beginning of the next.
    assert max(turns.values()) <= 2 * bounded_http.STEP + bounded_http.PIECE


@pytest.mark.parametrize(
    ("descriptors", "most"), [(300, 156), (1024, 880), (20, 1), (resource.RLIM_INFINITY, 1000)]
)
def test_connections_leave_file_descriptors_for_the_rest(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert connections.allowed(1000) == most


def test_the_seam_to_uvicorn_and_bentoml_is_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever raises the upper bounds of uvicorn or BentoML looks here first."""
    from _bentoml_impl.worker import service as worker

    assert worker.main.callback is not None
    started = inspect.getsource(worker.main.callback)
    assert started.index("service = load(") < started.index("uvicorn.Config(")
    assert "http=" not in started  # uvicorn's choice, which ``install`` makes
    monkeypatch.setattr(uvicorn.config, "HTTP_PROTOCOLS", dict(uvicorn.config.HTTP_PROTOCOLS))
    monkeypatch.setattr(uvicorn.config, "LOOP_FACTORIES", dict(uvicorn.config.LOOP_FACTORIES))
    bounded_http.install()
    config = uvicorn.Config(app)  # type: ignore[arg-type]
    config.load()
    made = config.get_loop_factory()
    assert made is not None
    assert made.__module__ == event_loop.__name__
    assert "create_server(create_protocol, sock=sock, ssl=config.ssl, backlog=config.backlog)" in (
        inspect.getsource(uvicorn.Server.startup)
    )
    assert config.http_protocol_class is BoundedProtocol
    cycle = inspect.getsource(httptools_impl.RequestResponseCycle)
    assert set(_used(cycle, "self.transport.")) == {"write", "close", "is_closing"}
    whole = inspect.getsource(httptools_impl.HttpToolsProtocol)
    for name in ("self.cycle = RequestResponseCycle(", "self.pipeline.appendleft(", "self.flow"):
        assert name in whole
    # The door stands there.
    starts = ("self._start_asgi_task(self.cycle, app)", "self._start_asgi_task(cycle, app)")
    assert all(start in whole for start in starts)
    assert "should_upgrade" in dir(httptools.HttpRequestParser)
    ours = {name for name in vars(BoundedProtocol) if not name.startswith("_")}
    added = {"environment", "look", "evict", "abort", "on_chunk_header"}
    theirs: set[str] = set(dir(httptools_impl.HttpToolsProtocol))
    assert ours - added <= theirs


def _used(source: str, prefix: str) -> list[Any]:
    return [part.partition("(")[0] for part in source.split(prefix)[1:]]
