"""The load generator counts what it should: against a server whose times are known."""

from __future__ import annotations

import asyncio
import statistics

import pytest

from benchmarks.load import Target, arrivals, closed


async def with_server(seconds: float, use: object) -> object:
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

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        return await use(Target(port, "/x", [{"texts": ["ü"]}, {"texts": ["b"]}]))  # type: ignore[operator]
    finally:
        await asyncio.sleep(0.2)  # the other ends see that theirs are closed
        server.close()


def test_a_closed_loop_keeps_its_clients_busy() -> None:
    found = asyncio.run(with_server(0.02, lambda target: closed(target, 5, 1.0)))
    assert found.wall == pytest.approx(0.8)  # type: ignore[attr-defined]
    assert statistics.median(found.seconds) >= 0.02  # type: ignore[attr-defined]
    total = sum(found.statuses.values())  # type: ignore[attr-defined]
    assert 40 < total <= 5 * 0.8 / 0.02 + 10  # and what was under way at either end
    assert found.statuses[429] == pytest.approx(total / 10, abs=2)  # type: ignore[attr-defined]


def test_an_open_loop_keeps_its_rate_whatever_the_server_does() -> None:
    found = asyncio.run(with_server(0.3, lambda target: arrivals(target, 100, 1.0, seed=1)))
    total = sum(found.statuses.values())  # type: ignore[attr-defined]
    assert 60 <= total <= 140
    assert min(found.seconds) >= 0.3  # type: ignore[attr-defined]
    assert found.statuses[0] == 0  # type: ignore[attr-defined]


def test_answers_that_come_after_the_end_count_as_slow_ones() -> None:
    found = asyncio.run(with_server(1.2, lambda target: closed(target, 3, 0.5)))
    assert found.answered == 0  # type: ignore[attr-defined]
    assert len(found.seconds) == 3  # type: ignore[attr-defined]
    assert found.summary()["p50"] >= 1.2  # type: ignore[attr-defined]
    assert found.summary()["good_within_1s"] == 0  # type: ignore[attr-defined]


def test_refusals_do_not_make_a_service_good() -> None:
    found = asyncio.run(with_server(0.01, lambda target: closed(target, 5, 1.0)))
    assert found.summary()["good_within_1s"] == pytest.approx(0.9, abs=0.05)  # type: ignore[attr-defined]
