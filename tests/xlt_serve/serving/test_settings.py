"""The numbers of the environment, and the table of them."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.responses import Response
from starlette.routing import Router

from tests import ROOT
from tests.imports import modules, tree
from tests.xlt_serve.serving.conftest import Start, copied, valid
from tests.xlt_serve.serving.sockets import listening
from xlt_serve import bundle as bundles
from xlt_serve import wire
from xlt_serve.errors import UsageError
from xlt_serve.serving import limits_table, settings
from xlt_serve.serving.admission import Limits
from xlt_serve.serving.middleware import Receive, Scope, Send

BOUNDS = list(settings.bounds())


def test_the_committed_table_is_that_of_the_fields() -> None:
    assert limits_table.TABLE.read_text(encoding="utf-8") == limits_table.table()


def test_a_limit_is_either_fixed_or_has_a_variable() -> None:
    """The schema's greatest lengths are in the table of the fixed ones."""
    found: set[int] = set()

    def look(part: Any) -> None:
        if isinstance(part, dict):
            limits = {part.get(name) for name in ("maxLength", "maxItems", "maxProperties")}
            found.update(limit for limit in limits if isinstance(limit, int))
        for inner in part.values() if isinstance(part, dict) else part:
            if isinstance(inner, dict | list):
                look(inner)

    look(wire.schema())
    pair = 2
    assert found - {pair} <= {value for value, _ in limits_table.FIXED}
    assert len(found) > 3


def test_every_variable_is_there_once() -> None:
    variables = [said.variable for _, _, said, _ in BOUNDS]
    assert len(set(variables)) == len(variables)


@pytest.mark.parametrize(("name", "part", "said", "default"), BOUNDS, ids=lambda value: str(value))
def test_a_number_is_read_by_its_variable(
    name: str, part: str, said: settings.Bound, default: float
) -> None:
    asked = type(default)(said.least + default + 1)
    read = getattr(settings.read({said.variable: str(asked)}), name)
    found = getattr(read, part) if part else read
    assert (found, type(found)) == (asked, type(default))
    for wrong in (str(said.least - 1), "nan", "inf", "many"):
        with pytest.raises(UsageError, match=f"{said.variable}.*at least"):
            settings.read({said.variable: wrong})


def test_several_parts_of_one_field_are_read() -> None:
    read = settings.read({"XLT_MAX_WAIT": "0.5", "XLT_MAX_WAITING_TOKENS": "7"})
    assert (read.limits.wait, read.limits.tokens) == (0.5, 7)


def reads() -> set[tuple[str, str]]:
    """(owner, attribute) of all that the package reads: of ``environment.limits.wait`` it has
    ("environment", "limits") and ("limits", "wait")."""
    out = set()
    for file in modules("xlt_serve").values():
        if file == ROOT / "xlt_serve" / "serving" / "settings.py":
            continue
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Attribute):
                owner = node.value
                name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                out.add((name, node.attr))
    return out


READS = reads()
HOLDERS = {"environment", "bounds", "wanted"}
"""What the service calls an ``Environment``."""


@pytest.mark.parametrize(("name", "part", "said", "default"), BOUNDS, ids=lambda value: str(value))
def test_every_bound_is_read_by_something(
    name: str, part: str, said: settings.Bound, default: float
) -> None:
    wanted = {("limits", part)} if part else {(holder, name) for holder in HOLDERS}
    assert READS & wanted, f"nothing reads {said.variable}"


def test_limits_of_one_request_are_413_in_our_shape(start: Start) -> None:
    told = settings.read({"XLT_MAX_WINDOWS": "3", "XLT_MAX_DRAWN_TOKENS": "500"})
    assert told.limits == replace(Limits(), windows=3, drawn_tokens=500)
    client = start(max_answer=2000, max_pairs=6, limits=told.limits)
    few, many = ["a goal"], ["a goal"] * 30
    for path, asked, code in (
        ("/classify", {"texts": few}, ""),
        ("/classify", {"texts": many}, "answer_too_large"),
        ("/classify", {"texts": ["a b " * 9000], "long": "windows"}, "too_many_windows"),
        ("/classify", {"texts": many, "mode": "smoothed", "top_k": 1}, "too_many_draws"),
        ("/zero_shot", {"texts": few * 3, "labels": ["a", "b", "c"]}, "too_many_pairs"),
        ("/zero_shot", {"texts": few * 3, "labels": ["a" * 400, "b" * 400]}, "answer_too_large"),
    ):
        got = client.post(path, json=asked)
        assert got.status_code == (413 if code else 200), got.text
        if code:
            assert valid("Error", got.json())["error"]["code"] == code
    # As many as may be: it is the bundle that can't.
    allowed = client.post("/zero_shot", json={"texts": few * 3, "labels": ["a", "b"]})
    assert allowed.status_code == 422


def test_an_answer_that_would_be_too_large_is_not_worked_out(start: Start) -> None:
    client = start(max_answer=2000)
    asked = {"texts": ["a goal"] * 100}
    refused = client.post("/classify", json=asked)
    assert refused.status_code == 413
    assert "100 items × " in valid("Error", refused.json())["error"]["message"]
    answered = client.post("/classify", json={"texts": ["", "a goal"]})
    assert answered.status_code == 200


def test_items_that_may_yet_be_errors_are_looked_at(start: Start, tmp_path: Path) -> None:
    """What is too long is found when it is tokenised, and its answer is short."""
    place = copied(tmp_path / "names", "with long names")
    made = bundles.load(place).manifest
    bundles.save(place, replace(made, labels=[f"{label} " * 50 for label in made.labels]))
    client = start(bundles={"names": str(place)}, max_answer=20_000)
    asked = {"texts": ["a goal " * 50] * 20, "max_length": 8}
    assert client.post("/classify", json=asked).status_code == 413
    assert client.post("/classify", json=asked | {"long": "error"}).status_code == 200


def test_items_and_values_are_bounded_as_told(start: Start) -> None:
    client = start(max_items=2, max_values=50)
    for count, code in ((2, ""), (3, "too_many_items"), (60, "too_many_values")):
        got = client.post("/classify", json={"texts": ["a"] * count})
        assert got.status_code == (413 if code else 200)
        assert not code or valid("Error", got.json())["error"]["code"] == code
    assert start().post("/classify", json={"texts": ["a"] * 3}).status_code == 200


def test_threads_streams_and_runs_are_as_told(start: Start) -> None:
    limits = replace(Limits(), slice=0.05)
    client = start(threads=3, streams=2, limits=limits)
    service = cast(Any, client.app).app.state.service
    assert service.threads == 3
    assert len(service.scheduler._runs) == 2
    assert service.scheduler.limits.slice == 0.05


def test_headers_are_bounded_as_told() -> None:
    head = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (Response("ok") if scope["type"] == "http" else Router().lifespan)(
            scope, receive, send
        )

    with listening(app, max_headers=3, max_header_bytes=256) as server:
        for more, status in (
            (b"A: b\r\n", 200),
            (b"A: b\r\n" * 2, 431),
            (b"A: " + b"b" * 256 + b"\r\n", 431),
        ):
            (got,) = server.said(head + more + b"\r\n")
            assert got.status == status


def test_proxies_origins_and_scrape_keys_are_read() -> None:
    read = settings.read(
        {
            "XLT_PROXIES": "192.0.2.1, 2001:db8::/32",
            "XLT_CORS_ORIGINS": "https://a.org,http://localhost:8000",
            "XLT_SCRAPE_KEYS": "s" * 16,
            "XLT_HOST": "127.0.0.1",
        }
    )
    assert [str(network) for network in read.proxies] == ["192.0.2.1/32", "2001:db8::/32"]
    assert read.origins == ("https://a.org", "http://localhost:8000")
    assert (read.scrape_keys, read.host) == (("s" * 16,), "127.0.0.1")
    for variable in ("XLT_PROXIES", "XLT_CORS_ORIGINS", "XLT_SCRAPE_KEYS"):
        with pytest.raises(UsageError, match=variable):
            settings.read({variable: "nonsense"})


def test_no_key_shows_where_the_settings_are_printed() -> None:
    key = "k" * 16
    names = ("XLT_API_KEYS", "XLT_ADMIN_KEYS", "XLT_SCRAPE_KEYS")
    assert key not in repr(settings.read(dict.fromkeys(names, key)))
