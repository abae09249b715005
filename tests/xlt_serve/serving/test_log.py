"""The log costs nobody a request: not with a reader who stalls, nor on a disk that is full."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import ROOT
from xlt_serve.bench.server_process import answers, end, free_port
from xlt_serve.serving.log import SHOWN, Log, Others, excerpt, take_over


@pytest.fixture
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    """A pipe that nobody reads yet, and a stream into it."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        yield reading, stream
        os.close(reading)


def read(number: int, until: str, seconds: float = 10) -> list[dict[str, Any]]:
    """The lines that come until one has this event."""
    lines, rest, ends = list[dict[str, Any]](), b"", time.monotonic() + seconds
    while time.monotonic() < ends and (not lines or lines[-1]["event"] != until):
        rest += os.read(number, 65536)
        *whole, rest = rest.split(b"\n")
        lines += [json.loads(line) for line in whole]
    return lines


def test_lines_come_in_their_order() -> None:
    written = io.StringIO()
    log = Log(written)
    for number in range(1000):
        log.write("event", number=number)
    assert log.flush(10)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [line["number"] for line in lines] == list(range(1000))
    assert log.lost == 0


def test_a_stalled_reader_costs_lines_that_are_counted_and_told(
    pipe: tuple[int, io.TextIOWrapper],
) -> None:
    reading, stream = pipe
    log, counted = Log(stream), list[int]()
    log.on_lost = counted.append
    begun = time.monotonic()
    for number in range(30_000):
        log.write("event", number=number)
    assert time.monotonic() - begun < 10
    assert not log.flush(0.05)
    assert log.lost == len(counted) > 0
    log_lines = threading.Thread(target=lambda: [time.sleep(0.3), log.write("last")])
    log_lines.start()
    lines = read(reading, "last")
    log_lines.join()
    numbers = [line["number"] for line in lines if line["event"] == "event"]
    assert numbers == sorted(numbers)
    assert sum(line["lines"] for line in lines if line["event"] == "log_lines_lost") == log.lost
    assert len(numbers) + log.lost == 30_000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_costs_lines() -> None:
    with Path("/dev/full").open("w") as full:
        log = Log(full)
        for _ in range(10):
            log.write("event")
        assert log.flush(10)
        assert log.lost == 10


def test_a_pipe_without_a_reader_and_a_closed_stream_cost_lines() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        log = Log(stream)
        log.write("event")
        assert log.flush(10)
        assert log.lost == 1
    log.write("event")
    assert log.flush(10)
    assert log.lost == 2


def test_lines_are_lost_where_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    written = io.StringIO()
    log = Log(written)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        log.write("before")
    assert log.lost == 1
    log.write("after")
    assert log.flush(10)
    events = [json.loads(line)["event"] for line in written.getvalue().splitlines()]
    assert events == ["log_lines_lost", "after"]


def test_the_process_ends_though_nobody_reads() -> None:
    """And a reader who comes in time gets all of it."""
    lines = (
        "from xlt_serve.serving.log import Log",
        "log = Log()",
        "for _ in range(3000): log.write('e')",
    )
    call = [sys.executable, "-c", "\n".join(lines)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(call, env=environment, stderr=subprocess.PIPE) as silent:
        assert silent.wait(60) == 0
    heard = subprocess.run(call, env=environment, stderr=subprocess.PIPE, timeout=60)
    assert heard.stderr.count(b'"event": "e"') == 3000


def test_loggers_of_others_write_by_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("tests.of.others")
    logger.propagate = False
    logger.addHandler(handler)
    written = io.StringIO()
    log = Log(written)
    try:
        take_over(log)
        (taken,) = logger.handlers
        assert isinstance(taken, Others)
        logger.warning("half %s", "\ud800")
        logger.warning("%d", "no number")
    finally:
        logger.handlers.clear()
        for each in list(logging.root.handlers):
            assert not isinstance(each, Others)
    assert log.flush(10)
    first, second = written.getvalue().splitlines()
    assert first == "WARNING half \\ud800"
    assert json.loads(second)["event"] == "log_failed"
    assert not stream.getvalue()


def _fails_on(text: str) -> None:
    raise ValueError(f"can't read {text!r}")


def test_a_failure_tells_types_and_places_and_no_values() -> None:
    written = io.StringIO()
    log = Log(written)
    try:
        try:
            _fails_on("a private text")
        except ValueError as cause:
            raise RuntimeError("of a private text") from cause
    except RuntimeError as error:
        log.failure("failure", error)
    assert log.flush(10)
    assert "private" not in written.getvalue()
    told = json.loads(written.getvalue())
    assert (told["error"], told["cause"]) == ("RuntimeError", "ValueError")
    assert told["cause_where"][-1].endswith(" _fails_on")


def test_of_long_texts_the_log_has_the_beginning() -> None:
    long = "x" * 600_000
    shown = excerpt(["short", long, [long, 1], {long: long}, None])
    assert shown == ["short", long[:SHOWN], [long[:SHOWN], 1], {long[:SHOWN]: long[:SHOWN]}, None]


def served(folder: Path, output: Any) -> tuple[subprocess.Popen[bytes], str]:
    port = free_port()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLT_STATE": str(folder / "state")}
    environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
    environment |= {"BENTOML_HOME": str(folder / "bentoml"), "XLT_BUNDLES": "topics"}
    call = [sys.executable, "-m", "xlt_serve.cli", "serve", "--port", str(port)]
    process = subprocess.Popen(
        call, env=environment, cwd=folder, stdout=output, stderr=output, start_new_session=True
    )
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + 120
    while not answers(f"{url}/readyz") and time.monotonic() < until:
        assert process.poll() is None
        time.sleep(0.1)
    return process, url


@pytest.mark.parametrize("output", ["a pipe that nobody reads", "/dev/full"])
def test_a_service_whose_log_can_not_be_written_serves_on(tmp_path: Path, output: str) -> None:
    reading, writing = os.pipe()
    if output == "/dev/full":
        writing = os.open(output, os.O_WRONLY)
    process, url = served(tmp_path, writing)
    try:
        with httpx.Client(timeout=20) as client:
            long = "x" * 64
            for _ in range(600):  # a pipe holds some two hundred lines, the queue thousands
                got = client.get(f"{url}/models", headers={"X-Request-Id": long})
                assert got.status_code == 200
            assert client.get(f"{url}/livez").status_code == 200
            told = client.get(f"{url}/metrics").text
            lost = float(told.partition("\nxlt_log_lines_lost_total ")[2].partition("\n")[0])
            assert (lost > 500) == (output == "/dev/full")
    finally:
        begun = time.monotonic()
        end(process)
        assert time.monotonic() - begun < 20
        os.close(reading)
