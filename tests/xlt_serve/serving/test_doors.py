"""The doors of a service: which need a key, what is reflected, what is written down, whose a request is."""

from __future__ import annotations

import contextlib
import io
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.xlt_serve.serving.conftest import Local, Start, valid
from tests.xlt_serve.serving.processes import Running, serving
from tests.xlt_serve.serving.sockets import Heard, Listening, answers, listening
from xlt_serve.serving import clients
from xlt_serve.serving.admission import Busy
from xlt_serve.serving.log import Log
from xlt_serve.serving.middleware import Gate, Guard, Receive, Scope, Send
from xlt_serve.serving.routes import METHODS, PATHS
from xlt_serve.serving.settings import Environment

KEY, OTHER, SCRAPE, ADMIN = "k" * 16, "l" * 16, "s" * 16, "a" * 16
EMPTY = [(b"content-length", b"0")]
METHOD = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"]


@pytest.fixture(scope="module")
def outside(start: Start) -> Local:
    return start(keys=(KEY,), admin_keys=(ADMIN,), scrape_keys=(SCRAPE,), host="0.0.0.0")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", ""])
def test_metrics_and_description_need_a_key_where_others_reach_them(
    start: Start, host: str
) -> None:
    client = start(keys=(KEY,), host=host)
    client.base_url = "http://127.0.0.1"  # where the connection itself would be local
    for path in ("/metrics", "/docs.json"):
        shut = client.get(path)
        assert (shut.status_code, shut.headers["www-authenticate"]) == (401, "Bearer")
        valid("Error", shut.json())
        assert client.head(path).status_code == 401
        assert client.get(path, headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
    assert client.get("/").status_code == 200


def test_on_loopback_they_need_none_unless_a_proxy_brings_others(start: Start) -> None:
    local = start(keys=(KEY,), host="127.0.0.1")
    local.base_url = "http://127.0.0.1"
    proxied = start(keys=(KEY,), host="127.0.0.1", proxies=clients.networks(["127.0.0.1"]))
    proxied.base_url = "http://127.0.0.1"
    for path in ("/metrics", "/docs.json", "/docs"):
        assert local.get(path).status_code == 200
        assert proxied.get(path).status_code == 401
    # What the variable says is not so: the connection came to another address.
    local.base_url = "http://192.0.2.1"
    assert local.get("/metrics").status_code == 401


def test_a_scrape_key_is_good_for_metrics_alone(outside: Local) -> None:
    headers = {"Authorization": f"Bearer {SCRAPE}"}
    assert outside.get("/metrics", headers=headers).status_code == 200
    for path in ("/docs.json", "/models"):
        assert outside.get(path, headers=headers).status_code == 401
    assert outside.post("/classify", json={"texts": "a"}, headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [(method, path) for path in sorted(PATHS) for method in METHOD if method not in METHODS[path]],
)
def test_a_method_that_is_not_there_is_answered_in_our_shape(
    outside: Local, method: str, path: str
) -> None:
    got = outside.request(method, path, headers={"X-API-Key": ADMIN})
    assert got.status_code == 405
    assert got.headers["allow"] == ", ".join(METHODS[path])
    if method != "HEAD":
        assert valid("Error", got.json())["error"]["code"] == "method_not_allowed"


PIECE = st.sampled_from(["/", "classify", "models", "livez", "..", ".", "%2e", "\n", "docs.json"])


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)
@given(
    st.text(max_size=300) | st.lists(PIECE).map("".join),
    st.sampled_from(METHOD) | st.text("ABZ", min_size=1, max_size=200),
    st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=300),
)
def test_what_is_logged_counted_and_answered_is_bounded(
    service: Local, path: str, method: str, request_id: str
) -> None:
    """And no answer sends a client to a host that it named itself."""
    before = len(service.lines())
    scope_path = "/" + path.lstrip("/")
    got = service.request(
        method,
        "http://evil.example" + urllib.request.quote(scope_path),
        content=b"",
        headers={"X-Request-Id": request_id, "Content-Type": "application/json"},
        follow_redirects=False,
    )
    assert not 300 <= got.status_code < 400
    assert "evil" not in str(got.headers)
    assert "evil" not in got.text or path in got.text
    assert len(got.headers["x-request-id"]) <= 64
    if got.status_code >= 400:
        assert len(got.content) < 2000
    for line in service.lines()[before:]:
        assert line["path"] in PATHS | {"other"}
        assert len(json.dumps(line)) < 600


def test_a_path_with_a_slash_at_its_end_is_no_redirect(service: Local) -> None:
    for path in ("/classify/", "/models//", "/livez/", "/metrics/"):
        got = service.post(path, json={"texts": ["a"]}, follow_redirects=False)
        assert got.status_code == 404
        assert "leave out the slash" in valid("Error", got.json())["error"]["message"]


# Whose a request is, over sockets: in the early refusal and where it is let in.


@dataclass
class Watched:
    server: Listening
    early: list[str]
    late: list[str]

    def moves(self, seconds: float) -> bool:
        """Whether the door looks at anything in this time."""
        before = len(self.early)
        time.sleep(seconds)
        return len(self.early) > before

    def ask(self, **headers: str) -> tuple[int, str, str]:
        self.early.clear()
        self.late.clear()
        """Who stays connected: the door looks at no other."""
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        with self.server.client() as client:
            client.sendall(posted(b"", *lines))
            got = received(client)
        return got.status, "".join(self.early), "".join(self.late)


@contextlib.contextmanager
def watched(at_the_door: bool = False, fails: int = 0, **told: Any) -> Iterator[Watched]:
    """``at_the_door``: as the service's own processes have it. ``fails``: so many times nobody knows whether
    a request is to be refused."""
    early: list[str] = []
    late: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        late.append(scope["state"]["client"])
        while scope["path"] == "/classify" and (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": EMPTY})
        await send({"type": "http.response.body", "body": b""})

    def refuse(client: str) -> None:
        early.append(client)
        if len(early) <= fails:
            raise RuntimeError("on purpose")
        if client == "192.0.2.66":
            raise Busy(1.0, 1.0)

    gate = Gate(refuse_if_full=refuse, log=Log(io.StringIO()))
    gate.obey(Environment({}, **told))
    whole: Any = Guard(app, gate)
    if at_the_door:
        whole.state = SimpleNamespace(at_the_door=gate.at_the_door)
    with listening(whole) as server:
        yield Watched(server, early, late)


def test_nobody_on_this_machine_says_who_it_is() -> None:
    """uvicorn itself would believe it: the peer is 127.0.0.1."""
    with watched() as service:
        for header in ("X_Forwarded_For", "Forwarded", "X_Real_IP", "X_API_Key"):
            assert service.ask(**{header: "192.0.2.1"}) == (200, "127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize("door", [False, True])
def test_a_proxy_says_who_it_is_and_a_key_says_it_better(door: bool) -> None:
    near = clients.networks(["127.0.0.1"])
    with watched(door, proxies=near, keys=(KEY, OTHER), admin_keys=(SCRAPE,)) as service:
        assert service.ask(X_API_Key=OTHER, X_Forwarded_For="192.0.2.1")[1:] == ("key 1",) * 2
        assert service.ask(Authorization=f"Bearer {SCRAPE}")[1:] == ("admin key 0",) * 2
        assert service.ask(X_API_Key="x" * 16) == (401, "", "")
    with watched(door, proxies=near) as service:
        assert service.ask(X_Forwarded_For="6.6.6.6, 192.0.2.1")[1:] == ("192.0.2.1",) * 2
        assert service.ask(X_Forwarded_For="2001:db8::1")[1:] == ("2001:db8::/64",) * 2
        assert service.ask(X_Forwarded_For="192.0.2.66") == (429, "192.0.2.66", "")


CROWDED = "X-Forwarded-For: 192.0.2.66"


def posted(body: bytes = b"", *headers: str) -> bytes:
    lines = ["POST /classify HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def test_at_the_door_a_refusal_is_the_same_and_the_connection_goes_on() -> None:
    """Whatever the client sends of the body after it has its answer."""
    near = clients.networks(["127.0.0.1"])
    asked = [posted(b"x" * 100_000, CROWDED), posted(b"y" * 90_000), posted(b"", CROWDED), posted()]
    asked += [posted(b"", "Connection: close", CROWDED)]
    both = []
    for door in (False, True):
        with watched(door, proxies=near, origins=("https://a.example",)) as service:
            found = []
            with service.server.client() as client:
                for each in asked:
                    client.sendall(each[:60_000])
                    client.sendall(each[60_000:])
                    found.append(received(client))
                assert client.recv(1) == b""
            assert service.late == ["127.0.0.1"] * 2
            assert service.early == ["192.0.2.66", "127.0.0.1"] * 2 + ["192.0.2.66"]
            both.append(found)
    assert [one.status for one in both[0]] == [429, 200, 429, 200, 429]
    for slow, fast in zip(*both, strict=True):
        assert slow.status == fast.status
        if slow.status == 429:
            assert slow.error() == fast.error() == "busy"
        for one in (slow, fast):
            one.headers.pop("date", None)
            one.body = one.body.replace(one.headers.pop("x-request-id").encode(), b"")
        assert (slow.headers, slow.body) == (fast.headers, fast.body)


def received(client: socket.socket) -> Heard:
    data = b""
    while True:
        data += client.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        if length and len(body) >= int(length[1]):
            (got,) = answers(data)
            return got


@pytest.mark.parametrize("door", [False, True])
def test_who_would_speak_another_protocol_is_told_that_this_was_the_last_answer(door: bool) -> None:
    near = clients.networks(["127.0.0.1"])
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: x")
    with watched(door, proxies=near) as service:
        (got,) = service.server.said(posted(b"12345", CROWDED, *upgrade))
    assert got.status == 429
    assert got.headers["connection"] == "close"


def test_a_door_that_fails_lets_the_request_in(caplog: pytest.LogCaptureFixture) -> None:
    with watched(True, fails=1) as service:
        assert service.ask() == (200, "127.0.0.1127.0.0.1", "127.0.0.1")
    assert "the door failed" in caplog.text


def test_refusals_that_nobody_reads_do_not_pile_up() -> None:
    near = clients.networks(["127.0.0.1"])
    asked = posted(b"", CROWDED) * 400
    with watched(True, proxies=near) as service, service.server.client(4096) as client:
        client.setblocking(False)
        until, sent = time.monotonic() + 20, 0
        while time.monotonic() < until and sent < 40_000_000:
            try:
                sent += client.send(asked[sent % len(asked) :])
            except BlockingIOError:
                if not service.moves(0.5):
                    break
        (connection,) = service.server.server.server_state.connections
        assert connection.transport.get_write_buffer_size() < 256 * 1024
        assert sent < 40_000_000


def test_at_the_door_pipelined_requests_are_answered_in_their_order() -> None:
    near = clients.networks(["127.0.0.1"])
    asked = [posted(b"ab"), posted(b"cd", CROWDED), posted(b"", CROWDED), posted(b"ef")] * 2
    asked += [posted(b"", "Connection: close")]
    with watched(True, proxies=near) as service:
        got = service.server.said(b"".join(asked))
    assert [one.status for one in got] == [200, 429, 429, 200] * 2 + [200]
    assert len(service.late) == 5


# A running service.


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("doors")
    told = {
        "XLT_API_KEYS": f"{KEY},{OTHER}",
        "XLT_SCRAPE_KEYS": SCRAPE,
        "XLT_PROXIES": "127.0.0.1",
        "XLT_MAX_WAIT": "2",  # on a machine where tests crowd, the event loop itself is late
    }
    with serving(folder, "--bundle", "topics", **told) as made:
        yield made


def said(running: Running, method: str, path: str, host: str, key: str = KEY) -> Heard:
    port = int(running.url.rpartition(":")[2])
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"X-API-Key: {key}", "Connection: close"]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall("\r\n".join([*lines, "Content-Length: 0", "", ""]).encode())
        data = b""
        while got := client.recv(65536):
            data += got
    found = answers(data) if method != "HEAD" else answers(data.replace(b"content-length", b"x"))
    return found[0]


def test_no_route_of_bentoml_reflects_the_host(running: Running) -> None:
    others = ["/classify/", "/livez/", "/assets", "/assets/", "/schema.json", "/static_content"]
    for path in (*PATHS, *others):
        for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "TRACE"):
            got = said(running, method, path, "evil.example")
            assert not 300 <= got.status < 400, (method, path)
            assert "evil.example" not in str(got), (method, path)
            if got.status >= 400 and method != "HEAD":
                got.error()


def test_a_running_service_shows_metrics_to_keys_alone(running: Running) -> None:
    assert said(running, "GET", "/metrics", "x", "").status == 401
    assert said(running, "GET", "/metrics", "x", SCRAPE).status == 200
    assert said(running, "GET", "/docs.json", "x", SCRAPE).status == 401
    assert said(running, "GET", "/livez", "x", "").status == 200


HEAVY = json.dumps({"texts": ["Die Mannschaft gewann das Finale nach Elfmeterschießen."] * 1000})
LIGHT = json.dumps({"texts": ["Das Spiel endete unentschieden."]})


def post(running: Running, body: str, key: str, items: int) -> int:
    """The status; 0 where an answer is not whole, or a refusal does not say when to come back."""
    headers = {"Content-Type": "application/json", "X-API-Key": key}
    request = urllib.request.Request(f"{running.url}/classify", body.encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            labels = [each["label"] for each in json.load(answer)["predictions"]]
            return int(answer.status) if len(labels) == items and all(labels) else 0
    except urllib.error.HTTPError as error:
        with error:
            refused = valid("Error", json.load(error))["error"]
        told = refused["code"] == "busy" and int(error.headers["Retry-After"]) >= 1
        return error.code if told else 0


@pytest.mark.slow
def test_a_light_client_is_not_refused_beside_a_heavy_one(running: Running) -> None:
    """Eight connections of 1,000 items each, over and over, with a key of their own."""
    over, heavy, light = threading.Event(), Counter[int](), Counter[int]()

    def flood() -> None:
        while not over.is_set():
            heavy[post(running, HEAVY, KEY, 1000)] += 1

    threads = [threading.Thread(target=flood) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(1)  # the queue is full by now
        until = time.monotonic() + 8
        while time.monotonic() < until:
            light[post(running, LIGHT, OTHER, 1)] += 1
            time.sleep(0.02)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert heavy[200], heavy
    assert set(heavy) <= {200, 429}, heavy
    assert set(light) == {200}, (light, heavy)
    assert sum(light.values()) >= 3
    # Nothing is left over: the heavy one is answered, too, once it asks for one thing at a time.
    until = time.monotonic() + 20
    while (status := post(running, LIGHT, KEY, 1)) != 200 and time.monotonic() < until:
        time.sleep(0.1)
    assert status == 200
