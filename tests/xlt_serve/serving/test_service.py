"""The routes, their limits and their errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.xlt_serve.serving.conftest import Local, Start, copied, valid
from xlt_serve import bundle, load, wire
from xlt_serve.errors import UsageError
from xlt_serve.serving import examples, settings
from xlt_serve.serving.admission import Limits
from xlt_serve.serving.settings import Environment

GERMAN = "Die Mannschaft gewann das Finale nach Elfmeterschießen."
SPANISH = "El virus se propaga por el aire."
JSON = {"Content-Type": "application/json"}


def test_the_committed_schema_is_that_of_the_models() -> None:
    assert wire.SCHEMA.read_text(encoding="utf-8") == wire.schema_text()


def test_it_answers_like_the_library(service: Local) -> None:
    texts = [GERMAN, "", SPANISH] * 40  # more than a chunk
    answer = service.post("/classify", json=valid("ClassifyRequest", {"texts": texts}))
    assert answer.status_code == 200
    body = valid("Answer", answer.json())
    assert body["predictions"] == [p.to_dict() for p in load().predict(texts)]
    assert body["bundle"]["name"] == "topics"
    assert 0 <= body["timings"]["queue_ms"] <= body["timings"]["predict_ms"]


def test_options_ride_in_the_request(service: Local) -> None:
    asked = {"texts": GERMAN, "top_k": 2, "language": "xx", "abstain_below": 1.0, "max_length": 8}
    (got,) = service.post("/classify", json=asked).json()["predictions"]
    assert len(got["probabilities"]) == 2
    assert (got["language"], got["label"], got["abstained"]) == ("xx", None, "confidence")
    assert got["truncated"]


def test_votes_of_a_long_request_have_one_seed_and_certificates(service: Local) -> None:
    asked = {"texts": [GERMAN] * 40, "mode": "smoothed", "samples": 60, "radius": 0.02}
    body = valid("Answer", service.post("/classify", json=asked).json())
    (seed,) = {prediction["seed"] for prediction in body["predictions"]}
    again = service.post("/classify", json=asked | {"texts": [GERMAN], "seed": seed}).json()
    assert again["predictions"][0] == body["predictions"][39]
    assert body["predictions"][0]["draws"] == sum(body["predictions"][0]["votes"].values())


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "usage"),
        ({"texts": ["a"], "pairs": [["a", "b"]]}, 422, "usage"),
        ({"texts": 7}, 422, "invalid"),
        ({"texts": ["a"], "long": "shrink"}, 422, "invalid"),
        ({"texts": ["a"], "abstain_below": 7}, 422, "invalid"),
        ({"texts": ["a"], "max_length": "many"}, 422, "invalid"),
        ({"texts": ["a"], "max_length": True}, 422, "invalid"),
        ({"texts": ["a"], "mode": "guess"}, 422, "invalid"),
        ({"texts": ["a"], "mode": "smoothed", "long": "windows"}, 422, "usage"),
        ({"texts": ["a"], "colour": "red"}, 422, "invalid"),
        ({"texts": ["a"], "bundle": "other"}, 404, "unknown_bundle"),
        ({"texts": ["a"] * 1001}, 413, "too_many_items"),
        ({"texts": ["a"] * 10_000}, 413, "too_many_values"),
        ({"texts": ["a"], "translations": [0] * 8000}, 422, "invalid"),
        ({"texts": ["a"], "language": "x" * 65}, 422, "invalid"),
        ({"texts": ["a"], "language": ["de", "x" * 65]}, 422, "invalid"),
        ({"texts": ["a"], "language": "\ud800"}, 422, "invalid"),
        ({"texts": ["a"], "bundle": "\ud800"}, 422, "invalid"),
        ({"texts": ["a"], "bundle": "x" * 1000}, 404, "unknown_bundle"),
        ({"texts": ["a"], "bundle": "x" * 1001}, 422, "invalid"),
        ({"texts": ["a"], "mode": "smoothed", "noise": "x" * 65}, 422, "invalid"),
        ({"texts": ["a"], "mode": "smoothed", "noise": "\ud800"}, 422, "invalid"),
        ({"texts": ["a"]} | {str(number): 1 for number in range(4000)}, 422, "invalid"),
        ([], 422, "invalid"),
        ("text", 422, "invalid"),
    ],
)
def test_wrong_requests(service: Local, body: Any, status: int, code: str) -> None:
    answer = service.post("/classify", content=json.dumps(body), headers=JSON)
    assert answer.status_code == status
    error = valid("Error", answer.json())["error"]
    assert error["code"] == code
    assert error["message"]
    assert error["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"texts": ["\xff"]}', 400),
        (b'{"texts": ["a"], "abstain_below": NaN}', 400),
        (b'{"texts": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        (b'{"texts": ' + b"[" * 200 + b"]" * 200 + b"}", 400),
        (b'{"texts": ["a"], "seed": ' + b"9" * 5000 + b"}", 400),
        (b'{"texts": ["a"], "seed": 1e999}', 422),
        (b"x" * 8_000_001, 413),
    ],
)
def test_bodies_that_are_no_requests(service: Local, content: bytes, status: int) -> None:
    answer = service.post("/classify", content=content, headers=JSON)
    assert answer.status_code == status
    valid("Error", answer.json())


def test_a_body_of_unknown_length_is_read_no_further_than_the_limit(service: Local) -> None:
    read = 0

    def chunks() -> Iterator[bytes]:
        nonlocal read
        for _ in range(30):
            read += 1_000_000
            yield b"x" * 1_000_000

    answer = service.post("/classify", content=chunks(), headers=JSON)
    assert answer.status_code == 413


def test_other_content_types_are_refused(service: Local) -> None:
    for kind in ("application/vnd.bentoml+pickle", "multipart/form-data", "text/plain"):
        answer = service.post("/classify", content=b"{}", headers={"Content-Type": kind})
        assert answer.status_code == 415, kind
    assert service.post("/classify", content=b"{}").status_code == 415  # none at all
    zipped = service.post("/classify", content=b"{}", headers=JSON | {"Content-Encoding": "gzip"})
    assert zipped.status_code == 415
    assert zipped.json()["error"]["code"] == "content_encoding"


@pytest.mark.parametrize(
    "text",
    [
        "null\u0000byte",
        "🏆⚽🎉",
        "zero\u200bwidth\u200d\ufeff",
        "mixed שלום direction مرحبا text",
        "e\u0301" * 50,
        "\u202eright to left override",
    ],
)
def test_odd_texts_are_texts(service: Local, text: str) -> None:
    (got,) = service.post("/classify", json={"texts": [text]}).json()["predictions"]
    assert got["error"] is None
    assert got["label"]


def test_an_item_that_is_none_does_not_sink_its_neighbours(service: Local) -> None:
    content = b'{"texts": ["a good game", null, 5, "", ["a", "b"], "half \\ud800", {"a": 1}]}'
    body = valid("Answer", service.post("/classify", content=content, headers=JSON).json())
    codes = [p["error"] and p["error"]["code"] for p in body["predictions"]]
    assert codes == [None, "not_text", "not_text", "empty", "shape", "not_text", "not_text"]


def test_every_status_has_the_one_error_body(service: Local) -> None:
    for answer in (
        service.get("/nowhere"),
        service.get("/classify"),
        service.put("/models"),
        service.post("/models", json={"name": "topics"}),
    ):
        assert answer.status_code >= 400
        valid("Error", answer.json())
    assert service.get("/classify").headers["allow"] == "POST"


def test_request_ids_come_back(service: Local) -> None:
    given = service.get("/models", headers={"X-Request-Id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    odd = service.get("/models", headers={"X-Request-Id": "a b\x7f"})
    assert len(odd.headers["x-request-id"]) == 32
    assert [line["id"] for line in service.lines() if line.get("path") == "/models"][-2] == "abc-1"


def test_logs_have_no_texts_unless_asked_for(start: Start) -> None:
    secret = "sehr geheim"
    silent, talking = start(), start(log_texts=True)
    for client in (silent, talking):
        client.post("/classify", json={"texts": [secret]})
        client.post("/classify", json={"texts": [secret], "mode": secret})
        client.post("/classify", content=f'{{"{secret}": 1, "texts"'.encode(), headers=JSON)
    assert secret not in silent.log.getvalue()
    assert secret in talking.log.getvalue()
    line = next(line for line in silent.lines() if line.get("status") == 200)
    assert (line["event"], line["items"], line["bundle"]) == ("request", 1, "topics")


def test_keys(start: Start) -> None:
    good, other, admin = "k" * 16, "l" * 20, "a" * 16
    client = start(keys=(good, other), admin_keys=(admin,))
    asked: dict[str, Any] = {"url": "/classify", "json": {"texts": ["a"]}}

    def status(headers: dict[str, str]) -> int:
        return client.post(**asked, headers=headers).status_code

    assert status({}) == 401
    assert status({"X-API-Key": "k" * 15}) == 401
    assert status({"X-API-Key": good}) == 200
    assert status({"Authorization": f"Bearer {other}"}) == 200
    assert status({"Authorization": f"Basic {other}"}) == 401
    assert status({"X-API-Key": admin}) == 200
    assert client.get("/").status_code == 200
    assert client.get("/models").status_code == 401
    swap = {"name": "topics"}
    assert client.post("/models", json=swap, headers={"X-API-Key": good}).status_code == 401
    assert client.post("/models", json=swap, headers={"X-API-Key": admin}).status_code == 200
    valid("Error", client.post("/classify", json={}).json())


@pytest.mark.parametrize(
    ("environment", "asked", "status"),
    [({}, {"deadline_ms": 60}, 408), ({"timeout": 0.06}, {}, 504)],
    ids=["the client's", "the service's"],
)
def test_a_deadline_is_kept_and_its_rows_are_dropped(
    start: Start, environment: dict[str, Any], asked: dict[str, Any], status: int
) -> None:
    """Whoever set it: a client's own is not reported as a failure of the service."""
    service = start(**environment)
    asked |= {"texts": [GERMAN] * 500, "mode": "smoothed", "samples": 500}
    answer = service.post("/classify", json=asked)
    assert answer.status_code == status
    assert valid("Error", answer.json())["error"]["code"] == "deadline"
    scheduler = service.app.app.state.service.scheduler  # type: ignore[attr-defined]
    assert scheduler.waiting_tokens() == 0


def test_too_much_waiting_work_is_answered_with_429(start: Start) -> None:
    client = start(limits=Limits(wait=0.01))
    answers: list[Any] = []

    def ask() -> None:
        asked = {"texts": [GERMAN] * 20, "mode": "smoothed", "samples": 100}
        answers.append(client.post("/classify", json=asked))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert valid("Error", refused.json())["error"]["code"] == "busy"


def test_a_long_request_refuses_nobody_else(start: Start) -> None:
    """Its later rows run after those of a newcomer, who therefore does not wait for them."""
    client = start(limits=Limits(wait=2.0))
    statuses: list[int] = []

    def long() -> None:
        asked = {"texts": [GERMAN] * 150, "mode": "smoothed", "samples": 100}
        statuses.append(client.post("/classify", json=asked).status_code)

    thread = threading.Thread(target=long)
    thread.start()
    beside = []
    while thread.is_alive() and len(beside) < 30:
        beside.append(client.post("/classify", json={"texts": ["a"]}).status_code)
    thread.join()
    assert statuses == [200]
    assert len(beside) > 3
    assert set(beside) == {200}


def test_no_path_gets_round_the_keys(start: Start) -> None:
    """A router takes a path that ends in a line break for the path without it."""
    client = start(keys=("k" * 16,), admin_keys=("a" * 16,))
    for path in ("/classify%0A", "/classify%0a%0A", "/models%0A", "/models%0A/"):
        answer = client.post(path, json={"texts": ["a"], "name": "topics"})
        assert answer.status_code in (401, 404), path
        valid("Error", answer.json())
        assert client.get(path).status_code in (401, 404), path


def test_several_bundles_in_one_service(start: Start, second: Path) -> None:
    client = start(bundles={"first": "topics", "other": str(second)})
    models = valid("Models", client.get("/models").json())["models"]
    assert [(m["name"], m["default"]) for m in models] == [("first", True), ("other", False)]
    versions = {m["name"]: m["manifest"]["version"] for m in models}
    for name in (None, "first", "other"):
        body = client.post("/classify", json={"texts": ["a"], "bundle": name}).json()
        assert body["bundle"]["version"] == versions[name or "first"]


@pytest.mark.slow
def test_a_swap_drops_no_request(start: Start, tmp_path: Path) -> None:
    admin = {"X-API-Key": "a" * 16}
    client = start(admin_keys=("a" * 16,), limits=Limits(wait=5.0))  # loading keeps the cores busy
    places = [str(copied(tmp_path / str(n), f"version {n}")) for n in range(2)]
    answers: list[tuple[int, str]] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            got = client.post("/classify", json={"texts": [GERMAN, SPANISH]})
            answers.append((got.status_code, got.json()["bundle"]["version"]))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    versions = []
    for place in [*places, "topics"]:
        got = client.post("/models", json={"name": "topics", "bundle": place}, headers=admin)
        assert got.status_code == 200, got.text
        (model,) = valid("Models", got.json())["models"]
        versions.append(model["manifest"]["version"])
        assert (
            client.post("/classify", json={"texts": "a"}).json()["bundle"]["version"]
            == (versions[-1])
        )
    over.set()
    for thread in threads:
        thread.join()
    assert {status for status, _ in answers} == {200}
    assert len(set(versions)) == 3
    assert {version for _, version in answers} <= set(versions)


def test_a_bundle_that_can_not_be_loaded_is_never_swapped_in(start: Start, tmp_path: Path) -> None:
    admin = {"X-API-Key": "a" * 16}
    client = start(admin_keys=("a" * 16,))
    broken = copied(tmp_path / "broken", "to be broken")
    (broken / "plain.onnx").write_bytes(b"no graph")
    for place, status in ((str(broken), 422), ("nowhere", 404)):
        got = client.post("/models", json={"name": "topics", "bundle": place}, headers=admin)
        assert got.status_code == status, got.text
    assert client.post("/classify", json={"texts": [GERMAN]}).status_code == 200
    assert client.get("/models").json()["generation"] == 0


def test_pairs(start: Start, pair_bundle: Path) -> None:
    client = start(bundles={"pairs": str(pair_bundle)})
    body = client.post("/classify", json={"pairs": [["a game", "a match"], ["a", ""]]}).json()
    first, failed = valid("Answer", body)["predictions"]
    assert first["label"] in ("entailment", "contradiction")
    assert failed["error"]["code"] == "empty"
    one = client.post("/classify", json={"pairs": ["a game", "a match"]}).json()
    assert one["predictions"] == [first]
    single = client.post("/classify", json={"texts": ["a"]}).json()
    assert single["predictions"][0]["error"]["code"] == "shape"


def test_the_openapi_description_is_complete(service: Local) -> None:
    document = service.get("/docs.json").json()
    for path in ("/classify", "/zero_shot", "/models"):
        for method, described in document["paths"][path].items():
            assert described["responses"]["200"]["content"]
            if method == "post":
                content = described["requestBody"]["content"]["application/json"]
                kind = content["schema"]["$ref"].rsplit("/", 1)[1]
                for example in content["examples"].values():
                    valid(kind, example["value"])
            for answer in described["responses"].values():
                content = answer["content"]["application/json"]
                for example in content.get("examples", {}).values():
                    valid(content["schema"]["$ref"].rsplit("/", 1)[1], example["value"])


def test_the_answers_that_are_shown_are_given(start: Start) -> None:
    """Up to what another processor rounds otherwise: one without VNNI adds products of int8 in 16 bits,
    which overflow, so that probabilities move by hundredths."""

    def near(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: near(one) for key, one in value.items()}
        return pytest.approx(value, abs=0.1) if isinstance(value, float) else value

    client = start(bundles={name: name for name in bundle.shipped()})
    for name, shown in examples.PREDICTIONS.items():
        given = client.post("/classify", json=examples.REQUESTS[name]).json()["predictions"]
        assert given == [near(one) for one in shown], name


def test_settings_are_read_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n" + "x" * 32 + "\n\n" + "y" * 32 + "\n")
    read = settings.read(
        {
            "XLT_BUNDLES": "topics, nli=/models/nli",
            "XLT_API_KEYS": "z" * 16,
            "XLT_API_KEYS_FILE": str(file),
            "XLT_MAX_BODY": "1e6",
            "XLT_MAX_WAIT": "0.5",
        }
    )
    assert read.bundles == {"topics": "topics", "nli": "/models/nli"}
    assert read.keys == ("z" * 16, "x" * 32, "y" * 32)
    assert (read.max_body, read.limits.wait) == (1_000_000, 0.5)
    everything = {"topics": "topics", "topics-paired": "topics-paired"}
    assert settings.read({}) == replace(Environment(everything))


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("XLT_MAX_BODY", "much", "must be a number"),
        ("XLT_MAX_WAIT", "-1", "must be a number of at least"),
        ("XLT_API_KEYS", "short", "at least 16 characters"),
        ("XLT_API_KEYS_FILE", "/nowhere", "can't be read"),
        ("XLT_BUNDLES", "a,b=a,a", "is there twice"),
        ("XLT_BUNDLES", ",", "names no bundle"),
    ],
)
def test_wrong_settings_say_what_is_wrong(variable: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings.read({variable: text})


def test_an_empty_key_file_does_not_open_the_service(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# none yet\n")
    with pytest.raises(UsageError, match="holds no key"):
        settings.read({"XLT_API_KEYS_FILE": str(tmp_path / "keys")})


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_under_bentoml_there_are_probes_metrics_and_the_same_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XLT_STATE", str(tmp_path))
    monkeypatch.setenv("XLT_BUNDLE", "topics")
    from xlt_serve.service import XltService

    with TestClient(XltService.to_asgi()) as client:  # type: ignore[attr-defined]
        assert client.get("/livez").status_code == 200
        assert client.get("/readyz").status_code == 200
        body = client.post("/classify", json={"texts": [GERMAN]}).json()
        assert body["predictions"][0]["label"] == "sports"
        assert client.get("/").headers["content-type"].startswith("text/html")
        assert client.get("/docs.json").json()["info"]["title"] == "xlt-serve"
        missing = client.get("/nowhere")
        assert missing.status_code == 404
        assert valid("Error", missing.json())["error"]["code"] == "not_found"
        text = client.get("/metrics").text
        for name in (
            "xlt_requests_total",
            "xlt_queue_wait_seconds_bucket",
            "xlt_batch_tokens_bucket",
            "xlt_padded_tokens_total",
            "xlt_predictions_total",
            'xlt_languages_total{bundle="topics",language="de"}',
            "xlt_waiting_tokens",
        ):
            assert name in text, name


def test_messages_are_json_whatever_they_quote(service: Local) -> None:
    content = b'{"texts": ["a"], "\\ud800": 1}'
    answer = service.post("/classify", content=content, headers=JSON)
    assert answer.status_code == 422
    json.dumps(answer.json()).encode()


def test_the_page_is_sent_whole_whatever_ranges_are_asked_for(service: Local) -> None:
    ranges = "bytes=" + ",".join(f"{n}-{n}" for n in range(0, 3000, 2))
    plain, asked = service.get("/"), service.get("/", headers={"Range": ranges})
    assert (asked.status_code, asked.content) == (200, plain.content)
    assert plain.headers["content-type"] == "text/html; charset=utf-8"
    assert plain.headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in plain.headers["content-security-policy"]
    assert "accept-ranges" not in plain.headers
