"""What a service meets in the open: nonsense, slow and vanishing clients, killed workers, floods."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from tests.xlt_serve.serving.conftest import Local, Start, copied, valid
from tests.xlt_serve.serving.processes import Running, serving
from xlt_serve.bench import loops
from xlt_serve.bench.http_load import under_load
from xlt_serve.bench.loops import LoadRun, Send
from xlt_serve.bench.server_process import until_ready

TEXTS = [
    "Die Mannschaft gewann das Finale nach Elfmeterschießen.",
    "El virus se propaga por el aire y afecta a los pulmones de los pacientes.",
    "雨が降っている。",
    "Учёные запустили новый спутник на орбиту Земли, чтобы изучать погоду.",
]
HOST = "127.0.0.1"
JSON = {"Content-Type": "application/json"}


def raw(running: Running, content: bytes, wait: float = 10) -> bytes:
    """Send bytes, give back what comes until the other side closes."""
    with socket.create_connection((HOST, int(running.url.rsplit(":", 1)[1])), timeout=wait) as line:
        line.sendall(content)
        got = b""
        try:
            while chunk := line.recv(65536):
                got += chunk
        except (TimeoutError, ConnectionResetError):
            pass
        return got


def head(length: int | str, more: str = "") -> bytes:
    return (
        f"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n{more}\r\n"
    ).encode()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two workers, and little patience for slow bodies."""
    folder = tmp_path_factory.mktemp("survival")
    # On a machine where tests crowd, the event loop itself is late.
    keys = {"XLT_ADMIN_KEYS": "a" * 16, "XLT_READ_TIMEOUT": "1", "XLT_MAX_WAIT": "10"}
    with serving(folder, "--workers", "2", **keys) as made:
        yield made


def fine(running: Running) -> None:
    got = httpx.post(f"{running.url}/classify", json={"texts": TEXTS}, timeout=20)
    assert got.status_code == 200, got.text
    assert all(p["label"] for p in got.json()["predictions"])


def test_a_body_of_30_mb_is_refused_unread(running: Running) -> None:
    begun = time.monotonic()
    answer = raw(running, head(30_000_000) + b'{"texts": ["' + b"a" * 100_000, wait=60)
    assert answer.startswith(b"HTTP/1.1 413")
    assert time.monotonic() - begun < 30
    with httpx.Client() as client:
        sent = client.post(f"{running.url}/classify", content=b"x" * 30_000_000, headers=JSON)
        assert sent.status_code == 413
    fine(running)


def test_slow_and_half_open_clients_are_let_go_and_hold_up_nobody(running: Running) -> None:
    port = int(running.url.rsplit(":", 1)[1])
    lines = [socket.create_connection((HOST, port)) for _ in range(100)]
    for number, line in enumerate(lines):
        line.sendall((head(1000) + b'{"texts": [')[: 20 + number * 2])  # some stop in the headers
    begun = time.monotonic()
    fine(running)
    assert time.monotonic() - begun < 30
    slow = raw(running, head(1000) + b'{"texts": [', wait=60)
    assert slow.startswith(b"HTTP/1.1 408")
    body = slow.partition(b"\r\n\r\n")[2]
    assert valid("Error", json.loads(body))["error"]["code"] == "slow_body"
    for line in lines:
        line.close()
    fine(running)


@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS to a plain port
        b"\x00" * 1000,
        head(-5) + b"{}",
        head("many") + b"{}",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /classify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_hurts_nobody(running: Running, content: bytes) -> None:
    answer = raw(running, content, wait=2)
    assert not answer.startswith(b"HTTP/1.1 5")
    assert not answer.startswith(b"HTTP/1.1 200")
    fine(running)


def test_clients_that_leave_take_their_work_along(running: Running) -> None:
    # Seconds of work, within the limit of draws: what is over it is refused at once.
    asked = {"texts": TEXTS * 50, "mode": "smoothed", "samples": 1000, "radius": 0.3}
    body = json.dumps(asked).encode()
    end = time.monotonic() + 60
    left = 0
    while left < 4 and time.monotonic() < end:
        left += asked_and_left(running, head(len(body)) + body)
    assert left == 4
    fine(running)
    end = time.monotonic() + 60
    while running.log.read_text().count('"status": 499') < 4 and time.monotonic() < end:
        time.sleep(0.1)
    assert running.log.read_text().count('"status": 499') >= 4


def asked_and_left(running: Running, request: bytes) -> bool:
    """Whether the request was still under way when its client left; on a busy machine it may have been
    refused."""
    with socket.create_connection((HOST, int(running.url.rsplit(":", 1)[1]))) as line:
        line.sendall(request)
        line.settimeout(0.3)
        try:
            line.recv(1)
        except TimeoutError:
            return True
    return False


def test_a_swap_reaches_every_worker_and_drops_no_request(running: Running, tmp_path: Path) -> None:
    place = copied(tmp_path / "new", "swapped in")
    version = json.loads((place / "bundle.json").read_text())["version"]

    async def main() -> tuple[list[tuple[int, str]], list[str]]:
        answers: list[tuple[int, str]] = []
        over = False

        async def ask() -> None:
            # A new connection each time, so that both workers are asked.
            while not over:
                async with httpx.AsyncClient(timeout=30, verify=False) as client:
                    got = await client.post(f"{running.url}/classify", json={"texts": TEXTS[:1]})
                    answers.append((got.status_code, got.json()["bundle"]["version"]))

        tasks = [asyncio.create_task(ask()) for _ in range(4)]
        await asyncio.sleep(0.3)
        async with httpx.AsyncClient(timeout=60) as client:
            got = await client.post(
                f"{running.url}/models",
                json={"name": "topics", "bundle": str(place)},
                headers={"X-API-Key": "a" * 16},
            )
        assert got.status_code == 200, got.text
        assert got.json()["workers"] == 2
        after = []
        for _ in range(20):
            async with httpx.AsyncClient(timeout=30, verify=False) as client:
                said = await client.post(f"{running.url}/classify", json={"texts": TEXTS[:1]})
                after.append(said.json()["bundle"]["version"])
        over = True
        await asyncio.gather(*tasks)
        return answers, after

    answers, after = asyncio.run(main())
    assert {status for status, _ in answers} == {200}
    assert {seen for _, seen in answers} >= {version}
    assert set(after) == {version}  # not one from the bundle that was swapped out


def test_an_unload_reaches_every_worker(running: Running) -> None:
    admin = {"X-API-Key": "a" * 16}

    def answered() -> set[int]:
        body = {"texts": TEXTS[:1], "bundle": "topics-paired"}
        url = f"{running.url}/classify"
        return {httpx.post(url, json=body, timeout=20).status_code for _ in range(12)}

    assert answered() == {200}
    named = {"name": "topics-paired"}
    done = httpx.post(f"{running.url}/models/unload", json=named, headers=admin, timeout=60)
    assert done.status_code == 200, done.text
    assert answered() == {404}
    again = named | {"bundle": "topics-paired"}
    back = httpx.post(f"{running.url}/models", json=again, headers=admin, timeout=60)
    assert back.status_code == 200, back.text
    assert answered() == {200}


@pytest.mark.slow
def test_a_killed_worker_takes_only_its_own_requests_along(running: Running) -> None:
    before = running.workers()
    assert len(before) == 2
    versions = {m["manifest"]["version"] for m in _models(running)}

    async def main() -> Counter[str]:
        outcomes: Counter[str] = Counter()
        over = False

        async def ask() -> None:
            while not over:
                try:
                    async with httpx.AsyncClient(timeout=30, verify=False) as client:
                        got = await client.post(f"{running.url}/classify", json={"texts": TEXTS})
                    outcomes[str(got.status_code)] += 1
                except httpx.HTTPError:
                    outcomes["lost"] += 1

        tasks = [asyncio.create_task(ask()) for _ in range(6)]
        await asyncio.sleep(0.5)
        os.kill(before[0], signal.SIGKILL)
        await asyncio.sleep(1.5)
        over = True
        await asyncio.gather(*tasks)
        return outcomes

    outcomes = asyncio.run(main())
    assert set(outcomes) <= {"200", "lost"}
    assert outcomes["lost"] <= 6 + 2  # at most those that were in flight, or at its door
    assert outcomes["200"] > 20
    end = time.monotonic() + 30
    while time.monotonic() < end and (len(running.workers()) < 2 or before[0] in running.workers()):
        time.sleep(0.2)
    assert len(running.workers()) == 2
    until_ready(running)
    fine(running)
    time.sleep(3)
    assert {
        m["manifest"]["version"] for m in _models(running)
    } == versions  # the new one has it too


def _models(running: Running) -> list[Any]:
    found = []
    for _ in range(10):
        found += httpx.get(f"{running.url}/models", timeout=20).json()["models"]
    return found


def test_a_service_that_is_told_to_stop_finishes_what_it_accepted(tmp_path: Path) -> None:
    with serving(tmp_path, XLT_MAX_WAIT="10", XLT_TIMEOUT="120") as running:

        async def main() -> int:
            async with httpx.AsyncClient(timeout=120) as client:
                long = {"texts": TEXTS * 50, "mode": "smoothed", "samples": 1000, "radius": 0.3}
                while True:
                    task = asyncio.create_task(client.post(f"{running.url}/classify", json=long))
                    if await accepted(client, running, task):
                        break
                    # Done before the metrics told, a second late; or too long for a crowded machine.
                    assert task.result().status_code in (200, 429)
                    await asyncio.sleep(1)
                running.process.send_signal(signal.SIGTERM)
                return (await task).status_code

        assert asyncio.run(main()) == 200
        assert running.process.wait(120) == 0


async def accepted(
    client: httpx.AsyncClient, running: Running, task: asyncio.Task[httpx.Response]
) -> bool:
    """Until it is under way, beside the request that asks; or was answered before anybody saw it."""
    async with asyncio.timeout(60):
        while not task.done():
            told = (await client.get(f"{running.url}/metrics")).text
            if "xlt_requests_in_flight 2.0" in told:
                return True
            await asyncio.sleep(0.1)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("texts", [16, 1], ids=["of work", "of connections"])
def test_five_times_the_capacity_for_a_minute(tmp_path: Path, texts: int) -> None:
    """Every request is answered, with 200 or 429, and those accepted don't take longer than three times
    as long as they do alone. Not so with single texts: five times as many as two cores can classify are
    three thousand connections a second."""
    with serving(tmp_path, XLT_MAX_WAIT="0.25" if texts > 1 else "0.1") as running:
        requests = [
            (json.dumps({"texts": (TEXTS * 5)[n : n + texts]}).encode(), texts) for n in range(4)
        ]

        def loaded(loop: Callable[[Send], Awaitable[LoadRun]]) -> tuple[LoadRun, dict[str, Any]]:
            run = under_load(running.url, requests, loop)
            return run, loops.described(run)

        _, alone = loaded(lambda send: loops.closed(send, 1, 5, warm_up=1))
        _, busy = loaded(lambda send: loops.closed(send, 8, 5, warm_up=1))
        rate = 5 * busy["requests_per_second"]
        flood, found = loaded(lambda send: loops.open_loop(send, rate, 60, patience=60))
        statuses = loops.statuses(flood)
        assert set(statuses) <= {200, 429}, statuses
        assert statuses[200] > 100
        assert statuses[429] > 100
        slow, quick = found["latency_ms"]["p99"], alone["latency_ms"]["p99"]
        if texts == 1 and slow > 3 * quick:  # known: statuses hold, times don't
            pytest.xfail(f"refused late on shared cores: {slow / quick:.1f} ×")
        assert slow <= 3 * quick, (alone, busy, found)
        # And when it is over, everybody is let in again.
        time.sleep(1.5)
        after, _ = loaded(lambda send: loops.closed(send, 4, 2.4, warm_up=0.6))
        assert set(loops.statuses(after)) == {200}


@pytest.fixture(scope="module")
def probed(start: Start, pair_bundle: Path) -> Local:
    """Single texts, pairs with entailment, and a key that may swap."""
    bundles = {"topics": "topics", "pairs": str(pair_bundle)}
    return start(bundles=bundles, admin_keys=("a" * 16,))


@pytest.mark.parametrize("examples", [15, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("name", ["classify", "zero_shot", "models", "swap", "unload"])
def test_schemathesis_finds_no_server_error(
    probed: Local, name: str, mode: GenerationMode, examples: int
) -> None:
    """Requests that fit the description, and requests that just don't."""
    document = probed.get("/docs.json").json()
    schema = schemathesis.openapi.from_dict(document)
    operation = schema.find_operation_by_id(name)
    if mode is GenerationMode.NEGATIVE and name == "models":
        pytest.skip("nothing of it can be wrong")
    tried: Counter[int] = Counter()

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def probe(case: schemathesis.Case) -> None:
        try:
            body = json.dumps(case.body) if isinstance(case.body, dict | list | str) else ""
        except ValueError:
            body = "{"
        answer = probed.request(
            case.method,
            case.path,
            content=body.encode("utf-8", "surrogatepass"),
            headers={"Content-Type": "application/json", "X-API-Key": "a" * 16},
        )
        tried[answer.status_code] += 1
        assert answer.status_code < 500, answer.text
        success = "Models" if case.path.startswith("/models") else "Answer"
        valid("Error" if answer.status_code >= 400 else success, answer.json())

    makes_sense = mode is GenerationMode.POSITIVE and name not in ("swap", "unload")
    for _ in range(10):  # of fifteen random requests none may make sense: then others are drawn
        probe()
        if tried[200] or not makes_sense:
            break
    assert sum(tried.values()) >= 1
    assert tried[200] or not makes_sense
