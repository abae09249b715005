"""A service in this process: the routes behind their guard, without BentoML's processes."""

from __future__ import annotations

import contextlib
import io
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient

from xlt_serve import bundle as bundles
from xlt_serve import wire
from xlt_serve.serving import sealed
from xlt_serve.serving.app import create
from xlt_serve.serving.log import Log
from xlt_serve.serving.middleware import Gate, Guard
from xlt_serve.serving.settings import Environment

SCHEMA = json.loads(wire.SCHEMA.read_text(encoding="utf-8"))


def valid(kind: str, value: Any) -> Any:
    """``value``, after comparing it with the committed schema by another hand than ours."""
    schema = {"$ref": f"#/$defs/{kind}", "$defs": SCHEMA["$defs"]}
    jsonschema.Draft202012Validator(schema).validate(value)
    return value


class Written(io.StringIO):
    """What a log's thread has written, all of it."""

    by: Log

    def getvalue(self) -> str:
        assert self.by.flush(10)
        return super().getvalue()


class Local(TestClient):
    log: Written

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


Start = Callable[..., Local]


@contextlib.contextmanager
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def started(**settings: Any) -> Local:
            log = Written()
            gate = Gate(log=Log(log))
            log.by = gate.log
            state = tmp_path_factory.mktemp("state")
            environment = replace(Environment({"topics": "topics"}, state=state), **settings)
            client = Local(Guard(create(gate, environment), gate))
            client.log = log
            return stack.enter_context(client)

        yield started


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start services with these settings; all end with the module: each has threads of its own."""
    with services(tmp_path_factory) as started:
        yield started


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """The shipped bundle, default limits, no keys."""
    with services(tmp_path_factory) as started:
        yield started()


@pytest.fixture(scope="session")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped bundle under another version."""
    return copied(tmp_path_factory.mktemp("bundles") / "second", "a second version")


def copied(folder: Path, notes: str) -> Path:
    import shutil

    shipped = bundles.load()
    shutil.copytree(shipped.path, folder)
    bundles.save(folder, replace(shipped.manifest, notes=notes))
    return folder


@pytest.fixture
def own_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registries of other tests' services, in this process, remove dropped copies too."""
    monkeypatch.setattr(sealed, "_dropped", deque())
