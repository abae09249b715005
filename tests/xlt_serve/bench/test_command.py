"""`xlt bench` as a user calls it: on a bundle, on a server, on two runs."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import onnxruntime
import pytest

from xlt_serve.bench import compare, nvml, peers, plots, report, served, texts
from xlt_serve.bench import http_load as http
from xlt_serve.bench import measure as run
from xlt_serve.cli.main import main
from xlt_serve.errors import DataError, UsageError

SCHEMA = json.loads(run.SCHEMA.read_text())


class Handler(BaseHTTPRequestHandler):
    """The wire format of /classify, in a few lines; ``smoothed`` is refused."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[dict[str, Any]]] = []
    chunked: ClassVar[bool] = False
    added: ClassVar[dict[str, Any]] = {}  # to each prediction

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(body)
        status, answer = (
            200,
            {
                "predictions": [
                    {"label": "x", **self.added}
                    for _ in body.get("texts", body.get("pairs", body.get("input", [])))
                ],
                "bundle": {"name": "b", "version": "1"},
                "timings": {"queue_ms": 1.5, "predict_ms": 2.5},
            },
        )
        if body.get("mode") == "smoothed":
            status, answer = 422, {"error": {"code": "usage", "message": "no such mode"}}
        data = json.dumps(answer).encode()
        self.send_response(status)
        if self.chunked:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (data[:10], data[10:]):
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.seen.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_address[1]}"
        found.shutdown()
        thread.join()


def self_contained(page: str) -> None:
    assert page.startswith("<!doctype html>")
    assert not re.search(r"(src|href)\s*=|url\(|@import|<script|https?://(?!127)", page)


def test_a_bundle(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--rows", "1,4", "--lengths", "16,32,9999", "--seconds", "0.05"]
    files = ["--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")]
    assert main(["bench", str(bundle), *asked, *files]) == 0
    made = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(made, SCHEMA)
    assert made["providers"] == ["CPUExecutionProvider"]
    assert {(p["rows"], p["length"]) for p in made["points"]} == {
        (1, 16),
        (4, 16),
        (1, 32),
        (4, 32),
    }
    assert made["machine"]["packages"]["onnxruntime"] == onnxruntime.__version__
    assert any("p99" in note for note in made["notes"])  # 30 runs are too few, and it says so
    page = (tmp_path / "r.html").read_text()
    self_contained(page)
    assert page.count("<svg") == 3
    assert "cpu int8 4 × 32" in capsys.readouterr().out


def test_a_server_in_both_loops(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--clients", "1,4", "--rates", "40", "--modes", "plain,smoothed", "--items", "2"]
    files = ["--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")]
    assert main(["bench", server, *asked, "--seconds", "0.3", "--warm-up", "0.1", *files]) == 0
    made = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(made, SCHEMA)
    assert [compare.point_name(p) for p in made["points"]] == [
        "plain closed 1 clients",
        "plain closed 4 clients",
        "plain open 40/s",
    ]
    for point in made["points"]:
        assert point["server_ms"]["queue_ms"]["mean"] == 1.5
        assert point["items_per_second"] == pytest.approx(
            2 * point["requests_per_second"], rel=0.01
        )
        assert point["errors"] == {}
    assert any("mode smoothed was not measured: status 422" in note for note in made["notes"])
    page = (tmp_path / "r.html").read_text()
    self_contained(page)
    for caption in ("Latency against throughput", "Percentiles by rate", "Queue against compute"):
        assert caption in page
    assert all(len(body["texts"]) == 2 for body in Handler.seen)


def test_an_infinity_server_gets_its_own_words(server: str) -> None:
    call = ["--api", "infinity", "--model", "m", "--clients", "1", "--rates", "20"]
    assert main(["bench", server, *call, "--seconds", "0.1", "--warm-up", "0"]) == 0
    assert Handler.seen[0].keys() == {"input", "model"}


def test_chunked_answers_and_closed_connections(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "chunked", True)

    async def ask() -> list[Any]:
        endpoint = http.Endpoint(server, http.bodies(["a"], 1, "texts", {}))
        first = await endpoint.send(0)
        endpoint._free[0][1].close()  # as a server does with a connection that nobody uses
        await endpoint._free[0][1].wait_closed()
        second = await endpoint.send(1)
        await endpoint.aclose()
        return [first, second]

    for reply in asyncio.run(ask()):
        assert reply.status == 200
        assert reply.timings == {"queue_ms": 1.5, "predict_ms": 2.5}


def test_texts_go_as_their_own_translations_where_the_mode_wants_them(server: str) -> None:
    call = ["--modes", "plain,paired,translate", "--clients", "1", "--rates", "20", "--items", "2"]
    assert main(["bench", server, *call, "--seconds", "0.1", "--warm-up", "0"]) == 0
    assert {body.get("mode", "plain") for body in Handler.seen} == {"plain", "paired", "translate"}
    for body in Handler.seen:
        assert body.get("translations") == (body["texts"] if "mode" in body else None)


@pytest.mark.parametrize(
    ("mode", "added"),
    [
        ("paired", {"mixed": False, "reason": {"code": "no_translator", "message": "none here"}}),
        ("translate", {"reason": {"code": "no_translator", "message": "none here"}}),
    ],
)
def test_plain_answers_are_not_measured_as_another_mode(
    server: str,
    mode: str,
    added: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Handler, "added", added)
    assert main(["bench", server, "--modes", mode, "--seconds", "0.1"]) == 1
    said = capsys.readouterr()
    assert f"can't be measured in mode {mode}: it answers without the translation" in said.err
    assert "(none here)" in said.err
    assert said.out == ""


def test_failed_texts_are_counted() -> None:
    answer = {
        "predictions": [
            {"label": None, "error": {"code": "empty", "message": "x"}},
            {"label": "a", "error": None, "translation": '"error": {'},
        ]
    }
    for separators in ((",", ":"), (", ", ": ")):
        assert http.errors(json.dumps(answer, separators=separators).encode()) == 1


def test_a_server_that_never_answers_does_not_hold_the_load_generator() -> None:
    ended: list[asyncio.StreamWriter] = []

    async def ask() -> list[Any]:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()  # until the load generator hangs up
            writer.close()
            ended.append(writer)

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            bodies = http.bodies(["a"], 1, "texts", {})
            endpoint = http.Endpoint(f"http://127.0.0.1:{port}", bodies, timeout=0.2)
            replies = [await endpoint.send(n) for n in range(2)]
            await endpoint.aclose()
            async with asyncio.timeout(5):
                while len(ended) < 2:  # the server has noticed that nobody is there
                    await asyncio.sleep(0.01)
            return replies

    begun = time.monotonic()
    assert [(reply.status, reply.items) for reply in asyncio.run(ask())] == [(0, 0)] * 2
    assert time.monotonic() - begun < 30


CHATTY = """
import os, pathlib, subprocess, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        sys.stderr.write("x" * 1000 + "\\n")
        sys.stderr.flush()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass

wait = [sys.executable, "-c", "import time; time.sleep(600)"]
found = [os.getpid(), *(subprocess.Popen(wait, start_new_session=own).pid for own in (False, True))]
pathlib.Path(sys.argv[1]).write_text(" ".join(map(str, found)))
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


def test_a_service_may_say_much_and_leaves_nobody_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    psutil = pytest.importorskip("psutil")
    pids = tmp_path / "pids"
    monkeypatch.setattr(
        served,
        "_command",
        lambda bundle, provider, port: [sys.executable, "-c", CHATTY, str(pids), str(port)],
    )
    with served.serving("any", "cpu", patience=60) as url:
        for _ in range(200):  # three times what a pipe holds
            urllib.request.urlopen(url, timeout=30).close()
        numbers = [int(number) for number in pids.read_text().split()]
        assert all(map(psutil.pid_exists, numbers))
    end = time.monotonic() + 20
    while any(map(running, numbers)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(running, numbers))


def running(number: int) -> bool:
    """Where nobody collects orphans, the dead stay in the table."""
    import psutil

    try:
        return bool(psutil.Process(number).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_service_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys; sys.stderr.write('x' * 100_000 + ' no such port'); sys.exit(3)"
    monkeypatch.setattr(served, "_command", lambda *_: [sys.executable, "-c", script])
    with (
        pytest.raises(UsageError, match=r"could not be served: x+ no such port$") as caught,
        served.serving("any", "cpu", patience=60),
    ):
        pass
    assert len(str(caught.value)) < 400
    script = (
        "import sys, time; sys.stderr.write('still loading'); sys.stderr.flush(); time.sleep(600)"
    )
    monkeypatch.setattr(served, "_command", lambda *_: [sys.executable, "-c", script])
    with (
        pytest.raises(DataError, match="was not ready to serve after 3 s: still loading"),
        served.serving("any", "cpu", patience=3),
    ):
        pass


@pytest.mark.parametrize(
    ("call", "code", "says"),
    [
        (["http://127.0.0.1:9"], 1, "does not answer"),
        (["topics", "--provider", "gpu"], 2, "is not a provider"),
        (["topics", "--lengths", "4000"], 2, "at most 128 tokens"),
        (
            ["topics", "--against", "magic", "--checkpoint", "x"],
            2,
            "is no peer; known: transformers",
        ),
        (["topics", "--against", "transformers"], 2, "needs the same weights"),
        (["topics", "--against", "infinity", "--checkpoint", "x"], 2, "start it and give its URL"),
        (["topics", "--fail-if-slower", "5%"], 2, "goes with --compare"),
        (["--compare", "a.json", "b.json", "c.json"], 2, "compares two runs"),
        (["nothing"], 1, "is neither a shipped bundle"),
        (["--compare", "a.json", "b.json"], 1, "is not there"),
        (["topics", "--seconds", "0"], 2, "must be more than 0"),
    ],
)
def test_wrong_calls(
    call: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *call]) == code
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_cuda_without_a_gpu_is_an_error(
    provider: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    assert (
        main(
            ["bench", "topics", "--provider", f"cpu,{provider}", "--json", str(tmp_path / "r.json")]
        )
        == 2
    )
    said = capsys.readouterr()
    assert f"--provider {provider}" in said.err
    assert said.out == ""  # nothing was measured before it was said
    assert list(tmp_path.iterdir()) == []


def example(scale: float = 1.0, seed: int = 0) -> dict[str, Any]:
    import random

    from xlt_serve.bench.stats import summary

    generator = random.Random(seed)
    points = []
    for rows in (1, 8):
        times = [scale * rows * 10 * generator.lognormvariate(0, 0.1) for _ in range(2000)]
        points.append(
            {
                "provider": "cpu",
                "precision": "int8",
                "rows": rows,
                "length": 64,
                "latency_ms": summary(times),
                "stable": True,
                "tokens_per_second": 1.0,
                "start_s": 0.1,
            }
        )
    from xlt_serve.bench.machine import machine

    return {
        "format": 1,
        "when": "2026-01-01T00:00:00+00:00",
        "target": "topics 1",
        "texts": {},
        "machine": machine(),
        "gpu": None,
        "providers": ["CPUExecutionProvider"],
        "settings": {},
        "points": points,
        "notes": ["a <b> & c"],
    }


def test_the_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / f"{name}.json" for name in ("before", "same", "slower", "faster")}
    run.write(example(), files["before"])
    run.write(example(1.0, seed=1), files["same"])
    run.write(example(1.2, seed=2), files["slower"])
    run.write(example(0.8, seed=3), files["faster"])
    jsonschema.validate(example(), SCHEMA)

    def gate(after: str, limit: str) -> int:
        return main(
            [
                "bench",
                "--compare",
                str(files["before"]),
                str(files[after]),
                "--fail-if-slower",
                limit,
            ]
        )

    assert gate("same", "5%") == 0
    assert "same" in capsys.readouterr().out
    assert gate("faster", "5%") == 0
    assert "faster" in capsys.readouterr().out
    assert gate("slower", "25%") == 0  # 20 % is within 25 %
    assert gate("slower", "5%") == 1
    assert "significantly more than 5.0% slower" in capsys.readouterr().err
    other = example()
    other["points"] = [deepcopy(other["points"][0]) | {"length": 7}]
    other["machine"]["cores"] = 64
    run.write(other, files["same"])
    assert gate("same", "5%") == 2
    assert compare.differences(example(), other)[0].startswith("cores: ")
    other = example()
    other["settings"] = other["settings"] | {"items_per_request": 8}
    run.write(other, files["same"])
    capsys.readouterr()
    assert gate("same", "5%") == 2
    assert "had other loads: items_per_request was" in capsys.readouterr().err
    assert main(["bench", "--compare", str(files["before"]), str(files["same"])]) == 0
    assert "note: not the same besides: items_per_request: " in capsys.readouterr().err


def loop_point(errors: dict[str, int], **about: Any) -> dict[str, Any]:
    from xlt_serve.bench.stats import summary

    refused = sum(count for kind, count in errors.items() if kind.isdigit())
    times = [10.0 + n % 7 for n in range(1000 - refused)]
    return {
        "mode": "plain",
        "requests": 1000,
        "latency_ms": summary(times),
        "errors": errors,
    } | about


def test_the_gate_sees_errors_and_points_that_are_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    closed = {"loop": "closed", "clients": 8}
    opened = {"loop": "open", "rate": 50.0}

    def gate(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> str:
        run.write(example() | {"points": first}, before)
        run.write(example() | {"points": second}, after)
        assert main(["bench", "--compare", str(before), str(after)]) == 0  # it only tells
        capsys.readouterr()
        failed = main(["bench", "--compare", str(before), str(after), "--fail-if-slower", "5%"])
        said = capsys.readouterr()
        assert failed == bool(said.err)
        return said.err

    clean = loop_point({}, **closed)
    both = [clean, loop_point({"429": 100}, **opened)]
    assert gate(both, both) == ""
    assert gate(both, [clean, loop_point({"429": 105}, **opened)]) == ""  # chance
    assert "429: 100 of 1000 before, 200 of 1000 after" in gate(
        both, [clean, loop_point({"429": 200}, **opened)]
    )
    assert "closed 8 clients, 500: 0 of 1000 before, 2 of 1000 after" in gate(
        both, [loop_point({"500": 2}, **closed), both[1]]
    )
    assert "open 50/s, was not measured again" in gate(both, [clean])
    assert gate([clean], both) == ""  # more than before is no fault
    old = loop_point({"429": 100}, **opened)
    del old["requests"]  # as reports were before they had it
    assert gate([clean, old], both) == ""


def test_a_run_takes_the_rates_of_the_one_that_it_is_compared_with(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Left to themselves, two runs ask at shares of what each found best: never the same."""
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    short = ["--clients", "1", "--seconds", "0.2", "--warm-up", "0"]
    assert main(["bench", server, *short, "--rates", "31.5,47", "--json", str(before)]) == 0
    compared = [*short, "--json", str(after), "--compare", str(before), "--fail-if-slower", "900%"]
    assert main(["bench", server, *compared]) == 0
    assert "plain open 31.5/s" in capsys.readouterr().out
    names = [
        {compare.point_name(point) for point in json.loads(file.read_text())["points"]}
        for file in (before, after)
    ]
    assert names[0] == names[1]


def test_where_the_time_goes() -> None:
    """The service's timings as it sends them: predicting holds waiting and running."""

    def point(latency: float, **own: float) -> dict[str, Any]:
        means = {name: {"mean": value} for name, value in own.items()}
        return {"server_ms": means, "latency_ms": {"mean": latency}}

    parts = report.parts_of(point(12.0, queue_ms=3.0, run_ms=5.0, predict_ms=9.5))
    assert list(parts.values()) == [3.0, 5.0, 1.5, 2.5]
    assert sum(parts.values()) == 12.0
    # Runs beside one another count twice.
    parts = report.parts_of(point(9.0, queue_ms=3.0, run_ms=7.0, predict_ms=9.5))
    assert list(parts.values()) == [3.0, 7.0, 0.0, 0.0]


def test_the_parts_are_those_that_the_service_sends() -> None:
    from xlt_serve import wire

    assert set(wire.Timings.model_fields) == {"queue_ms", "run_ms", "predict_ms"}


@pytest.mark.parametrize(
    ("text", "limit"), [("5%", 1.05), ("5", 1.05), ("0.05", 1.05), ("0%", 1.0)]
)
def test_percentages(text: str, limit: float) -> None:
    assert compare.percentage(text) == pytest.approx(limit)
    with pytest.raises(UsageError):
        compare.percentage("fast")


def test_pages_escape_what_they_show() -> None:
    page = report.page(example())
    self_contained(page)
    assert "a &lt;b&gt; &amp; c" in page
    assert "<b>" not in page


def test_axes_mark_round_numbers_and_keep_the_order() -> None:
    axis = plots._Axis([3.0, 97.0], 0, 100, False)
    assert axis.marks() == [0, 20, 40, 60, 80, 100]
    assert axis.at(3) < axis.at(97)
    logarithmic = plots._Axis([0.5, 2000.0], 0, 100, True)
    assert {1, 10, 100, 1000} <= set(logarithmic.marks())
    assert logarithmic.at(10) - logarithmic.at(1) == pytest.approx(
        logarithmic.at(100) - logarithmic.at(10)
    )


class Gpu:
    """NVML's functions, of a GPU that runs hot."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self) -> None:
        self.clocks = iter([1500, 1200] + [1300] * 100_000)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, _: int) -> bytes:
        return b"Test GPU"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "1.2"

    def nvmlDeviceGetClockInfo(self, _: int, kind: int) -> int:
        return next(self.clocks) if kind == 1 else 5000

    def nvmlDeviceGetPowerUsage(self, _: int) -> int:
        return 250_000

    def nvmlDeviceGetCurrentClocksEventReasons(self, _: int) -> int:
        return 0x20

    def nvmlDeviceGetTemperature(self, *_: int) -> int:
        raise RuntimeError("not supported")


def test_what_nvml_says_is_kept_and_what_it_can_not_say_left_out() -> None:
    import time

    with nvml.watched(0, every=0.001, nvml=Gpu()) as found:
        time.sleep(0.5)
    assert found["name"] == "Test GPU"
    assert found["samples"] >= 2
    assert (found["sm_mhz"]["min"], found["sm_mhz"]["max"]) == (1200, 1500)
    assert found["watts"]["mean"] == 250
    assert found["slowed_by"] == ["heat"]
    assert "celsius" not in found
    page = report.page(example() | {"gpu": found})
    assert "Test GPU" in page


def test_without_a_gpu_there_is_nothing_to_say() -> None:
    if nvml.driver() is not None:
        pytest.skip("this machine has a GPU")
    with nvml.watched(0) as found:
        pass
    assert found == {}


def test_the_texts_are_many_languages_and_lengths() -> None:
    from xlt_serve.text.language import detect

    found = texts.mixed(200)
    assert found == texts.mixed(200)
    assert len({detect(text).language for text in texts.SENTENCES}) >= 18
    assert max(map(len, found)) > 5 * min(map(len, found))


@pytest.mark.slow
def test_against_transformers_on_the_same_weights(checkpoint: Path, tmp_path: Path) -> None:
    from xlt_training.exporting import checkpoint as export

    made = export.export(checkpoint, tmp_path / "bundle")
    points, notes = peers.measure(
        made,
        checkpoint,
        peers.chosen(["transformers", "openvino"]),
        [(2, 16)],
        1,
        lambda _: None,
        rounds=2,
    )
    by_name = {point["peer"]: point for point in points}
    assert by_name["transformers"]["largest_difference"] < 1e-4
    assert by_name["transformers"]["same_labels"] == 1
    assert by_name["xlt-serve"]["latency_ms"]["count"] == 10
    if "openvino" not in by_name:
        assert "--against openvino: can't run here" in notes[0]


@pytest.mark.slow
def test_a_service_started_for_the_occasion(bundle: Path) -> None:
    with served.serving(str(bundle), "cpu") as url:
        load = served.Load(
            texts.mixed(20), clients=[2], rates=[5.0], seconds=1.0, warm_up=0.2, least=0
        )
        points, _ = served.measure(url, load, lambda _: None)
    assert [point["errors"] for point in points] == [{}, {}]
    assert all("predict_ms" in point["server_ms"] for point in points)
