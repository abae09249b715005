"""The client: against a running service, and against a server that plays its part badly."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.xlt_serve.serving.processes import Running, free_port, serving
from xlt_serve import AsyncClient, Client, load
from xlt_serve import bundle as bundles
from xlt_serve.cli.main import main
from xlt_serve.client import Policy, ServiceError, encoded, requests, split
from xlt_serve.errors import UsageError
from xlt_serve.wire import BadAnswer

TEXTS = ["Die Mannschaft gewann das Finale.", "El virus se propaga.", "", "雨が降っている。"] * 30


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("client"), XLT_ADMIN_KEYS="a" * 16) as made:
        yield made


def test_a_long_list_comes_back_whole_and_in_order(running: Running) -> None:
    expected = [p.to_dict() for p in load().predict(TEXTS)]
    with Client(running.url, policy=Policy(items=7)) as client:
        answer = client.classify(TEXTS)
    assert [p.model_dump(exclude_unset=True) for p in answer.predictions] == expected

    async def main() -> list[dict[str, Any]]:
        async with AsyncClient(running.url, policy=Policy(items=7)) as client:
            got = await client.classify(TEXTS)
            return [p.model_dump(exclude_unset=True) for p in got.predictions]

    assert asyncio.run(main()) == expected


def test_models_swaps_and_refusals(running: Running) -> None:
    client = Client(running.url, key="a" * 16)
    assert [model.name for model in client.models().models] == bundles.shipped()
    assert client.swap("topics").generation == 1
    assert [model.name for model in client.unload("topics-paired").models] == ["topics"]
    with pytest.raises(ServiceError, match="last one"):
        client.unload("topics")
    assert client.swap("topics-paired", "topics-paired").warnings == []
    with pytest.raises(ServiceError, match="abstain_below") as refused:
        client.classify(["a"], abstain_below=2)
    assert (refused.value.status, refused.value.code) == (422, "invalid")
    with pytest.raises(ServiceError, match="entailment"):
        client.zero_shot(["a"], ["b"])
    with pytest.raises(UsageError, match="takes a list"):
        client.classify("a text")
    assert client.classify([]).predictions == []
    assert client.classify(["half \ud800"]).predictions[0].error is not None


def test_votes_of_a_split_list_share_their_seed(running: Running) -> None:
    client = Client(running.url, policy=Policy(items=2))
    answer = client.classify(TEXTS[:2] * 3, mode="smoothed", samples=30)
    assert len({prediction.seed for prediction in answer.predictions}) == 1
    assert answer.predictions[0] == answer.predictions[2] == answer.predictions[4]


def test_predict_with_a_url_prints_what_it_prints_without(
    running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts"
    file.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    printed = []
    for more in ([], ["--url", running.url]):
        assert main(["predict", str(file), "--top-k", "3", *more]) == 0
        printed.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert printed[0] == printed[1]
    assert main(["predict", str(file), "--url", "ftp://x"]) == 2


class Script(BaseHTTPRequestHandler):
    """Answers with the next (status, body, headers) of ``answers``; the last one for ever."""

    answers: list[tuple[int, bytes, dict[str, str]]]
    asked: list[float]

    def do_POST(self) -> None:
        self.asked.append(time.monotonic())
        self.rfile.read(int(self.headers["content-length"]))
        status, body, headers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if status == 0:  # hang up
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def scripted() -> Iterator[tuple[str, type[Script]]]:
    kind = type("Mine", (Script,), {"answers": [], "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", kind
    server.shutdown()
    thread.join()
    server.server_close()


GOOD = json.dumps(
    {
        "predictions": [],
        "bundle": {"name": "b", "version": "v"},
        "timings": {"queue_ms": 0, "run_ms": 0, "predict_ms": 0},
    }
).encode()
BUSY = (429, b'{"error": {"code": "busy", "message": "later"}}', {"Retry-After": "1"})


def test_it_waits_as_long_as_it_is_told_and_tries_again(scripted: tuple[str, type[Script]]) -> None:
    url, script = scripted
    script.answers[:] = [BUSY, (503, b"", {}), (0, b"", {}), (200, GOOD, {})]
    assert Client(url, policy=Policy(pause=0.01)).classify(["a"]).bundle.name == "b"
    assert len(script.asked) == 4
    assert script.asked[1] - script.asked[0] >= 1


def test_it_gives_up_in_the_end_and_at_once_where_trying_is_no_use(
    scripted: tuple[str, type[Script]],
) -> None:
    url, script = scripted
    client = Client(url, policy=Policy(pause=0.001, retries=2))
    script.answers[:] = [(503, b"<html>", {})]
    with pytest.raises(ServiceError, match="503") as refused:
        client.classify(["a"])
    assert refused.value.status == 503
    assert len(script.asked) == 3
    script.answers[:] = [(500, b'{"error": {"code": "internal", "message": "failed"}}', {})]
    with pytest.raises(ServiceError, match="failed"):
        client.classify(["a"])
    assert len(script.asked) == 4
    script.answers[:] = [(200, b'{"predictions": [{"label": 7}]}', {})]
    with pytest.raises(BadAnswer, match="does not allow"):
        client.classify(["a"])


def test_nobody_there() -> None:
    client = Client(f"http://127.0.0.1:{free_port()}", policy=Policy(pause=0.001, retries=2))
    with pytest.raises(ServiceError, match="does not answer") as refused:
        client.models()
    assert refused.value.status == 0


@given(
    st.lists(st.one_of(st.text(max_size=30), st.lists(st.text(max_size=9), max_size=2), st.none())),
    st.integers(1, 5),
    st.integers(1, 60),
)
def test_parts_cover_the_list_within_the_bounds(items: list[Any], most: int, size: int) -> None:
    policy = Policy(items=most, size=size)
    parts = [items[start:end] for start, end in split(items, policy)]
    assert [item for part in parts for item in part] == items
    for part in parts:
        assert len(part) <= most
        assert len(part) <= 1 or sum(len(encoded([item])) for item in part) <= size


def test_requests_are_measured_as_they_are_sent() -> None:
    """Characters would be a sixth or a twelfth of that, and translations would not count at all."""
    texts = ["你好" * 20_000, "😀" * 20_000] * 40
    bodies = requests("texts", texts, {"translations": texts}, Policy())
    assert sum(len(body["texts"]) for body in bodies) == 80
    assert max(len(encoded(body)) for body in bodies) < 1_000_000
    assert len(requests("texts", ["a", 5, None], {}, Policy())) == 1


def test_translations_go_with_their_items() -> None:
    asked = {"translations": ["1", None, "3"], "mode": "paired", "top_k": None}
    bodies = requests("texts", ["a", "b", "c"], asked, Policy(items=2))
    assert bodies == [
        {"translations": ["1", None], "mode": "paired", "texts": ["a", "b"]},
        {"translations": ["3"], "mode": "paired", "texts": ["c"]},
    ]


@given(st.integers(0, 40), st.sampled_from([None, "2", "1e9", "Wed, 21 Oct 2026 07:28:00 GMT"]))
def test_waits_are_bounded(tried: int, told: str | None) -> None:
    wait = Policy().wait(tried, told)
    assert 0 < wait <= 45
    assert told != "2" or wait >= 2
