"""The event loop's heartbeat is measured, and missed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.xlt_serve.serving.processes import serving
from xlt_serve.bench.server_process import until_ready
from xlt_serve.serving import heartbeat
from xlt_serve.serving.heartbeat import Heartbeat
from xlt_serve.serving.log import Log


def test_a_step_that_takes_long_is_seen() -> None:
    lags: list[float] = []

    async def main() -> None:
        beating = Heartbeat(lags.append, Log(io.StringIO()))
        await asyncio.sleep(0.1)
        time.sleep(0.3)
        await asyncio.sleep(0.05)
        beating.end()

    asyncio.run(main())
    assert len(lags) > 3
    assert max(lags) > 0.25
    assert min(lags) >= 0


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HANGS", 0.4)
    monkeypatch.setattr(heartbeat, "DEAD", 1.5)


def hang(seconds: float) -> None:
    time.sleep(seconds)


def watched(*hangs: float) -> tuple[list[dict[str, Any]], int]:
    """What the log has of a loop that stands for these times, and how often it was held to be dead."""
    written, ends = io.StringIO(), []
    log = Log(written)

    async def main() -> None:
        beating = Heartbeat(lambda _: None, log, lambda: ends.append(1))
        for seconds in hangs:
            await asyncio.sleep(0.1)
            hang(seconds)
        await asyncio.sleep(0.1)
        beating.end()

    asyncio.run(main())
    assert log.flush(10)
    told = [json.loads(line) for line in written.getvalue().splitlines()]
    # On a crowded machine it stands elsewhere, too.
    return [line for line in told if line["where"][-1].endswith((" hang", " step"))], len(ends)


@pytest.mark.usefixtures("short")
def test_a_loop_that_stands_is_told_of_once_each_time() -> None:
    told, ends = watched(0.9, 0.9)
    assert [line["event"] for line in told] == ["loop_stands", "loop_stands"]
    assert told[0]["level"] == "error"
    assert told[0]["seconds"] >= 0.4
    assert told[0]["where"][-1].endswith(" hang")
    assert not ends


@pytest.mark.usefixtures("short")
def test_a_loop_that_stands_for_too_long_is_dead() -> None:
    told, ends = watched(4.0)
    assert [line["event"] for line in told] == ["loop_stands", "loop_dead"]
    assert told[1]["where"][-1].endswith(" hang")
    assert ends == 1


@pytest.mark.usefixtures("short")
def test_a_loop_in_a_debugger_is_not_dead() -> None:
    stepping: dict[str, Any] = {"__name__": "pdb", "time": time}
    exec("def step(seconds):\n    time.sleep(seconds)", stepping)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.xlt_serve.serving.test_heartbeat.hang", stepping["step"])
        assert watched(3.0) == ([], 0)


WORKER = """
import asyncio, io, sys, time
from xlt_serve.serving import heartbeat
from xlt_serve.serving.log import Log

heartbeat.HANGS, heartbeat.DEAD = 0.2, 1.0

async def answer(reader, writer):
    if (await reader.readline()) == b"hang\\n":
        time.sleep(60)
    writer.write(b"ok\\n")

async def main():
    beating = heartbeat.Heartbeat(lambda _: None, Log(), heartbeat.end_process)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@pytest.fixture
def worker() -> Iterator[tuple[subprocess.Popen[str], int]]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", WORKER], cwd=ROOT, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def asked(port: int, line: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(line)
        return client.recv(10)


def test_a_worker_whose_loop_stands_ends_and_lets_its_clients_go(
    worker: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = worker
    assert asked(port, b"hello\n") == b"ok\n"
    with contextlib.suppress(ConnectionError):
        assert asked(port, b"hang\n") == b""
    assert process.wait(60) == 70
    assert process.stderr is not None
    told = [json.loads(line) for line in process.stderr.read().splitlines()]
    told = [line for line in told if line["where"][-1].endswith(" answer")]
    assert [line["event"] for line in told] == ["loop_stands", "loop_dead"]


def test_a_worker_that_was_stopped_goes_on(worker: tuple[subprocess.Popen[str], int]) -> None:
    process, port = worker
    for _ in range(3):
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        process.send_signal(signal.SIGCONT)
        assert asked(port, b"hello\n") == b"ok\n"
    assert process.poll() is None


HOOK = """
import signal, time
from xlt_serve.serving import heartbeat

heartbeat.DEAD = 3.0
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(600))
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_service_gets_a_new_worker_for_one_whose_loop_stands(
    tmp_path: Path, workers: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with serving(tmp_path, "--workers", str(workers), PYTHONPATH=path) as running:
        before = running.workers()
        assert len(before) == workers
        os.kill(before[0], signal.SIGUSR1)
        end = time.monotonic() + 60
        while time.monotonic() < end and (
            before[0] in running.workers() or len(running.workers()) < workers
        ):
            time.sleep(0.2)
        assert before[0] not in running.workers()
        assert len(running.workers()) == workers
        until_ready(running)
        assert '"loop_dead"' in running.log.read_text()
