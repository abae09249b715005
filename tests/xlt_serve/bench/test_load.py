"""The load generator over HTTP counts what it should: against a server whose times are known."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable

import pytest

from xlt_serve.bench import loops
from xlt_serve.bench.http_load import Endpoint, bodies
from xlt_serve.bench.loops import LoadRun, Send


def against_a_server(seconds: float, loop: Callable[[Send], Awaitable[LoadRun]]) -> LoadRun:
    """One answer a connection at a time, each after ``seconds``; every tenth is a 429."""
    number = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal number
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().split(b"content-length: ")[1].split(b"\r")[0])
                await reader.readexactly(size)
                number += 1
                status = b"429 Busy" if number % 10 == 0 else b"200 OK"
                await asyncio.sleep(seconds)
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n{}")
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        finally:
            writer.close()

    async def main() -> LoadRun:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        endpoint = Endpoint(f"http://127.0.0.1:{port}", bodies(["ü", "b"], 1, "texts", {}))
        try:
            return await loop(endpoint.send)
        finally:
            await endpoint.aclose()
            await asyncio.sleep(0.2)  # the other ends see that theirs are closed
            server.close()

    return asyncio.run(main())


def test_a_closed_loop_keeps_its_clients_busy() -> None:
    run = against_a_server(0.02, lambda send: loops.closed(send, 5, 0.8, warm_up=0.2))
    assert 0.79 <= run.seconds < 5
    assert statistics.median(sample.latency for sample in run.samples) >= 0.02
    total = len(run.samples)
    assert 40 < total <= 5 * 0.8 / 0.02 + 10  # and what was under way at either end
    assert loops.statuses(run)[429] == pytest.approx(total / 10, abs=2)


def test_an_open_loop_keeps_its_rate_whatever_the_server_does() -> None:
    run = against_a_server(0.3, lambda send: loops.open_loop(send, 100, 1.0, seed=1))
    assert 60 <= len(run.samples) <= 140
    assert min(sample.latency for sample in run.samples) >= 0.3
    assert loops.statuses(run)[0] == 0


def test_answers_that_come_after_the_end_count_as_slow_ones() -> None:
    run = against_a_server(1.2, lambda send: loops.closed(send, 3, 0.5))
    assert len(run.samples) == 3
    assert run.seconds >= 1.2  # until the last answer: they are not counted as fast ones either
    assert loops.described(run)["latency_ms"]["p50"] >= 1200


def test_refusals_do_not_make_a_service_good() -> None:
    run = against_a_server(0.01, lambda send: loops.closed(send, 5, 0.8, warm_up=0.2))
    point = loops.described(run)
    assert point["requests_per_second"] * run.seconds / point["requests"] == pytest.approx(
        0.9, abs=0.05
    )
    assert set(point["errors"]) == {"429"}
