"""BentoML's own clients, its schema, and other BentoML services that call ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests import ROOT
from tests.xlt_serve.serving.processes import Running, serving
from xlt_serve import wire
from xlt_serve.bench.server_process import free_port, started
from xlt_serve.serving.auth import KeyPolicy, Keys
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.inner_calls import KIND, TrustedSocket, Unpickled, as_json
from xlt_serve.serving.middleware import Gate, Message, Scope

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

KEY, ADMIN = "k" * 16, "a" * 16
GERMAN = "Die Mannschaft gewann das Finale."
HALF = "half \ud800"
WRONG = {"texts": 7}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("tools")
    # Behind a proxy it is open to others: its schema needs a key too.
    keys = {"XLT_API_KEYS": KEY, "XLT_ADMIN_KEYS": ADMIN, "XLT_PROXIES": "192.0.2.1"}
    with serving(folder, "--bundle", "topics", "--workers", "2", **keys) as made:
        yield made


@contextlib.contextmanager
def client(running: Running, token: str = KEY) -> Iterator[Any]:
    import bentoml

    with bentoml.SyncHTTPClient(running.url, token=token) as made:
        yield made
        made._temp_dir.cleanup()  # BentoML leaves it to the garbage collector, which warns


def answered(running: Running, asked: object) -> dict[str, Any]:
    """By plain HTTP."""
    headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
    content = json.dumps(asked).encode()
    got = httpx.post(f"{running.url}/classify", content=content, headers=headers, timeout=20)
    return timeless(got.json())


def timeless(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "timings"}


ASKED: list[dict[str, Any]] = [
    {"texts": [GERMAN, "", None, 7, HALF, ["a", "b"]], "top_k": 2},
    {"texts": GERMAN},  # a client that took it for a list would send its letters
    {"texts": [GERMAN], "pairs": None, "translations": None, "language": None},
    {"texts": [GERMAN], "mode": "smoothed", "samples": 50, "seed": 7},
    {"texts": []},
]


@pytest.mark.parametrize("asked", ASKED, ids=range(len(ASKED)))
def test_a_client_gets_the_answer_that_plain_http_gets(
    running: Running, asked: dict[str, Any]
) -> None:
    with client(running) as made:
        assert made.is_ready()
        assert timeless(made.classify(**asked)) == answered(running, asked)


def test_texts_may_be_given_by_position(running: Running) -> None:
    with client(running) as made:
        assert made.classify([GERMAN])["predictions"][0]["label"] == "sports"


def test_an_asynchronous_client(running: Running) -> None:
    import bentoml

    async def main() -> None:
        async with bentoml.AsyncHTTPClient(running.url, token=KEY) as made:
            assert await made.is_ready()
            got = await asyncio.gather(*[made.classify(**asked) for asked in ASKED])
            assert [timeless(one) for one in got] == [answered(running, one) for one in ASKED]
            with pytest.raises(bentoml.exceptions.UnprocessableEntity, match="texts: Input"):
                await made.classify(**WRONG)
        made._temp_dir.cleanup()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "asked", "token", "status", "message"),
    [
        ("swap", {"name": "topics"}, KEY, 401, "this needs an admin key"),
        ("swap", {"name": "other"}, ADMIN, 404, "other"),
        ("classify", WRONG, KEY, 422, "texts: Input should be a valid list"),
        ("classify", {"texts": ["a"] * 1001}, KEY, 413, "1001 items"),
        ("classify", {"texts": ["a"], "bundle": "other"}, KEY, 404, "other"),
        ("zero_shot", {"texts": ["a"], "labels": "letters"}, KEY, 422, "labels: Input"),
        ("zero_shot", {"texts": ["a"], "labels": ["b"]}, KEY, 422, "entailment"),
    ],
)
def test_refusals_are_exceptions_with_our_words(
    running: Running, method: str, asked: dict[str, Any], token: str, status: int, message: str
) -> None:
    from bentoml.exceptions import BentoMLException

    with client(running, token) as made:
        with pytest.raises(BentoMLException) as raised:
            getattr(made, method)(**asked)
        assert raised.value.error_code == status
        assert message in json.loads(raised.value.message)["error"]["message"]


def test_a_client_names_options_that_there_are_not(running: Running) -> None:
    with client(running) as made, pytest.raises(TypeError, match="colour"):
        made.classify(texts=["a"], colour="red")


def test_models_are_swapped_listed_and_unloaded(running: Running) -> None:
    from bentoml.exceptions import BentoMLException

    with client(running, ADMIN) as made:
        swapped = made.swap(name="topics")
        assert made.request("GET", "/models").json()["models"] == swapped["models"]
        with pytest.raises(BentoMLException, match="other") as raised:
            made.unload(name="other")
        assert raised.value.error_code == 404


def test_who_has_a_key_reads_the_schema(running: Running) -> None:
    from bentoml.exceptions import BentoMLException

    with pytest.raises(BentoMLException, match="Failed to fetch schema"):
        client(running, "").__enter__()
    assert httpx.get(f"{running.url}/schema.json").status_code == 401
    got = httpx.get(f"{running.url}/schema.json", headers={"X-API-Key": KEY})
    assert got.status_code == 200
    routes = {route["name"]: route for route in got.json()["routes"]}
    assert {name: route["route"] for name, route in routes.items()} == {
        "classify": "/classify",
        "zero_shot": "/zero_shot",
        "swap": "/models",
        "unload": "/models/unload",
    }
    kinds = {"classify": wire.ClassifyRequest, "zero_shot": wire.ZeroShotRequest}
    for name, kind in kinds.items():
        shown = routes[name]["input"]
        assert set(shown["properties"]) == set(kind.model_fields)
        required = {name for name, field in kind.model_fields.items() if field.is_required()}
        assert set(shown.get("required", ())) == required


def test_the_schema_is_made_once_and_bentomls_description_has_our_paths() -> None:
    from xlt_serve.service import XltService

    service: Any = XltService
    assert service.schema() is service.schema()
    described = json.dumps(service.openapi_spec.asdict(), default=str)
    for path in ("/classify", "/zero_shot", "/models"):
        assert f'"{path}"' in described
    assert "candidate labels" in described


def test_what_a_method_takes_by_default_is_what_the_wire_takes() -> None:
    """BentoML's inner calls name every argument."""
    from xlt_serve.serving.bento_methods import arguments

    for name, kind in (("classify", wire.ClassifyRequest), ("zero_shot", wire.ZeroShotRequest)):
        given = arguments(name)(texts=["a"], labels=["b"]) if name == "zero_shot" else None
        given = given or arguments(name)(texts=["a"])
        assert wire.parse(kind, given.model_dump())
        assert json.loads(given.model_dump_json()).keys() == given.model_fields_set


# Another BentoML service that calls ours.


@pytest.fixture(scope="module")
def dependent(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("dependent")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "BENTOML_HOME": str(folder / "bentoml"),
        "XLT_STATE": str(folder / "state"),
        "XLT_BUNDLES": "topics",
        "XLT_API_KEYS": KEY,
        "TEST_URL": running.url,
        "TEST_KEY": KEY,
    }
    environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
    with bento("tests.xlt_serve.serving.dependent:Dependent", folder, environment) as url:
        yield url


@contextlib.contextmanager
def bento(name: str, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "bentoml", "serve", name, "--port", str(port)]
    log = folder / "log"
    with started(name, command, port, log, environment=environment, folder=folder) as made:
        yield made.url


@pytest.mark.parametrize("way", ["typed", "untyped", "beside"])
def test_another_service_answers_through_ours(running: Running, dependent: str, way: str) -> None:
    """By its address, with our class and without, and in a worker beside it."""
    for asked in ASKED:
        if "seed" in asked or HALF in asked["texts"]:
            continue  # BentoML's own parser, of the other service, refuses half characters
        sent = {"way": way, "asked": asked}
        for path in ("over", "blocking"):
            got = httpx.post(f"{dependent}/{path}", json=sent, timeout=30)
            assert got.status_code == 200, got.text
            assert timeless(got.json()) == answered(running, asked)
    refused = httpx.post(f"{dependent}/over", json={"way": way, "asked": WRONG}, timeout=30)
    assert refused.status_code == 422
    assert "texts: Input should be a valid list" in refused.text


def test_a_service_beside_ours_needs_no_key(dependent: str) -> None:
    """Nobody else reaches the socket. By a public address it does."""
    sent = {"asked": {"name": "topics"}, "method": "swap"}
    got = httpx.post(f"{dependent}/over", json=sent | {"way": "beside"}, timeout=60)
    assert got.status_code == 200, got.text
    refused = httpx.post(f"{dependent}/over", json=sent | {"way": "typed"}, timeout=60)
    assert refused.status_code == 401


@pytest.mark.parametrize(
    ("server", "trusted"),
    [(("/run/a.sock", None), True), (("127.0.0.1", 3000), False), (None, False)],
)
def test_a_unix_socket_is_trusted_and_no_port_is(server: Any, trusted: bool) -> None:
    passed: list[Any] = []

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        passed.append(gate.refusal(scope))

    gate = Gate(policy=KeyPolicy(Keys([KEY]), Keys([ADMIN])))
    scope = {"type": "http", "method": "POST", "path": "/models", "headers": [], "state": {}}
    asyncio.run(TrustedSocket(app)(scope | {"server": server}, None, None))  # type: ignore[arg-type]
    assert (passed == [None]) == trusted


def test_half_characters_pass_bentomls_proxy(running: Running) -> None:
    """pydantic's JSON has no words for them, and would sink their neighbours."""
    from xlt_serve.serving.bento_methods import arguments

    asked = arguments("classify")(texts=[HALF, GERMAN])
    first, second = answered(running, json.loads(asked.model_dump_json()))["predictions"]
    assert (first["error"]["code"], second["label"]) == ("not_text", "sports")


def test_ours_in_the_process_of_another_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, running: Running
) -> None:
    monkeypatch.setenv("XLT_STATE", str(tmp_path))
    monkeypatch.setenv("XLT_BUNDLES", "topics")
    monkeypatch.setenv("XLT_API_KEYS", KEY)
    from tests.xlt_serve.serving.dependent import Alone
    from xlt_serve.service import app

    service: Any = Alone
    with TestClient(service.to_asgi()) as made:
        for asked in ASKED[1:]:
            got = made.post("/over", json={"asked": asked})
            assert timeless(got.json()) == answered(running, asked)
        refused = made.post("/over", json={"asked": WRONG})
        assert refused.status_code == 422
        assert "texts: Input should be a valid list" in refused.text
        assert app.state.service.ready
        swapped = made.post("/over", json={"asked": {"name": "topics"}, "method": "swap"})
        assert swapped.status_code == 200, swapped.text
    assert not app.state.service.ready  # it has ended with its host


GUEST = """
import asyncio, time
from xlt_serve.serving import heartbeat
from xlt_serve.service import XltService

heartbeat.HANGS, heartbeat.DEAD = 0.1, 0.2

async def main():
    guest = XltService()
    answer = await guest.classify(texts=["Die Mannschaft gewann das Finale."])
    time.sleep(1)
    return answer["predictions"][0]["label"]

print(asyncio.run(main()), flush=True)
time.sleep(1)
print("goes on")
"""


def test_a_host_whose_loop_stands_or_ends_goes_on(tmp_path: Path) -> None:
    """Its process is not ours to end."""
    told = {"PYTHONPATH": str(ROOT), "XLT_STATE": str(tmp_path), "XLT_BUNDLES": "topics"}
    done = subprocess.run(
        [sys.executable, "-c", GUEST], env=os.environ | told, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "sports\ngoes on\n"), done.stderr
    assert "loop_stands" in done.stderr


def test_ours_starts_once_though_nothing_is_loaded() -> None:
    from bentoml.exceptions import BentoMLException

    from xlt_serve.serving.bento_methods import InProcess

    starts: list[int] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        starts.append(1)
        app.state.service = SimpleNamespace(started=True, ready=False)
        yield

    async def main() -> None:
        here = InProcess(Starlette(lifespan=lifespan), Gate())
        for _ in range(2):
            with pytest.raises(BentoMLException):
                await here.call("/models", name="topics")
        await here.close()

    asyncio.run(main())
    assert starts == [1]


def test_the_manual_s_examples_run(running: Running, tmp_path: Path) -> None:
    manual = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    section = manual.partition("## From BentoML")[2].partition("\n## ")[0]
    asking, depending = re.findall(r"^```py\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    made = [
        text.replace("http://localhost:3000", running.url).replace('"KEY"', f'"{KEY}"')
        for text in (asking, depending)
    ]
    (tmp_path / "router.py").write_text(made[1], encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "BENTOML_HOME": str(tmp_path / "home")}
    environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", made[0]], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "sports\n", done.stderr
    with bento("router:Router", tmp_path, environment) as url:
        got = httpx.post(f"{url}/route", json={"text": GERMAN}, timeout=20)
        assert got.text == "sports"


# What we change of BentoML, and where.


def test_who_imports_the_service_keeps_bentoml_and_uvicorn_as_they_are() -> None:
    """Else a service that depends on ours would run under our limits."""
    looked = (
        "import uvicorn.config as c\n"
        "before = dict(c.HTTP_PROTOCOLS), dict(c.LOOP_FACTORIES)\n"
        "from bentoml._internal.server.http import traffic\n"
        "kind = traffic.TimeoutMiddleware\n"
        "from xlt_serve.service import XltService, app\n"
        "from xlt_serve.serving.heartbeat import end_process\n"
        "assert app.state.dead is not end_process\n"
        "assert (c.HTTP_PROTOCOLS, c.LOOP_FACTORIES) == before\n"
        "XltService.to_asgi()\n"
        "assert app.state.dead is end_process\n"
        "assert 'bounded_http' in c.HTTP_PROTOCOLS['auto']\n"
        "assert traffic.TimeoutMiddleware is kind\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", looked], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def timers(app: Any) -> list[float]:
    """Of more than a second, that a request leaves behind."""
    found: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        later = loop.call_later

        def noted(delay: float, *given: Any, **named: Any) -> asyncio.TimerHandle:
            handle = later(delay, *given, **named)
            left.append((delay, handle))
            return handle

        left: list[tuple[float, asyncio.TimerHandle]] = []
        loop.call_later = noted  # type: ignore[method-assign]
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as made:
            for path in ("/nowhere", "/docs.json", "/schema.json"):
                await made.get(path)
        found.extend(delay for delay, handle in left if delay > 1 and not handle.cancelled())

    asyncio.run(main())
    return found


def test_no_request_leaves_a_timer_behind() -> None:
    """BentoML's own application does: once it does not, we need not take its layer out any more. Once
    its layer has another name, ours does too."""
    import bentoml

    from xlt_serve.service import XltService

    @bentoml.service(metrics={"enabled": False})  # they can be made once in a process
    class Plain:
        pass

    ours: Any = XltService
    theirs: Any = Plain
    assert timers(ours.to_asgi()) == []
    assert timers(theirs.to_asgi()) == [60, 60, 60]


# Pickled calls, in a worker beside another service.


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("ran",))


def test_plain_values_alone_are_unpickled(capsys: pytest.CaptureFixture[str]) -> None:
    plain = {"texts": ["a", None, HALF, 7, 0.5, True], "pairs": [("a", "b")]}
    assert json.loads(as_json(pickle.dumps(plain, 5), 1000)) == plain | {"pairs": [["a", "b"]]}
    whole = pickle.dumps(plain)
    for wrong in (pickle.dumps(Harmful()), pickle.dumps({1, 2}), b"", b"{}", whole[:9]):
        with pytest.raises(Refusal, match="plain values"):
            as_json(wrong, 1000)
    assert capsys.readouterr().out == ""


def test_a_small_pickle_does_not_grow_without_bound() -> None:
    value: list[Any] = ["a"]
    for _ in range(60):
        value = [value, value]
    with pytest.raises(Refusal, match="1000 bytes"):
        as_json(pickle.dumps(value), 1000)
    assert as_json(pickle.dumps("a" * 998), 1000)


def test_a_large_pickle_is_refused_before_it_is_whole() -> None:
    received, sent = 0, list[Message]()

    async def receive() -> Message:
        nonlocal received
        received += 1
        return {"type": "http.request", "body": b"x" * 600, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(*_: Any) -> None:
        raise AssertionError

    scope: Scope = {"type": "http", "headers": [(b"content-type", KIND.encode())]}
    with pytest.raises(Refusal, match="1000 bytes") as raised:
        asyncio.run(Unpickled(app, lambda: 1000)(scope, receive, send))
    assert (raised.value.status, received, sent) == (413, 2, [])


@pytest.mark.parametrize(("status", "kind"), [(200, KIND), (422, "application/json")])
def test_answers_to_pickled_calls_are_pickled_and_errors_are_not(status: int, kind: str) -> None:
    seen: list[bytes] = []

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        message = await receive()
        seen.append(message["body"])
        headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"a":', "more_body": True})
        await send({"type": "http.response.body", "body": b" 1}"})

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": pickle.dumps({"texts": "a"}), "more_body": False}

    headers = [(b"content-type", KIND.encode()), (b"buffer-lengths", b"9")]
    scope: Scope = {"type": "http", "method": "POST", "path": "/classify", "headers": headers}
    asyncio.run(Unpickled(app, lambda: 1000)(scope, receive, send))
    assert seen == [b'{"texts": "a"}']
    start, body = sent
    given = dict(start["headers"])
    assert (start["status"], given[b"content-type"].decode()) == (status, kind)
    assert given[b"retry-after"] == b"1"
    found = pickle.loads(body["body"]) if status == 200 else json.loads(body["body"])
    assert found == {"a": 1}
