"""The bundles of workers that follow, fail, are killed and come back."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.xlt_serve.serving.conftest import Local, Start, copied, valid
from xlt_serve.errors import BundleError
from xlt_serve.serving import app
from xlt_serve.serving import registry as registries
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.log import Log
from xlt_serve.serving.registry import Loaded, Registry
from xlt_serve.serving.rehearsal import Stopped
from xlt_serve.serving.worker_state import Shared, Wanted

ADMIN = {"X-API-Key": "a" * 16}
TEXT = "Die Mannschaft gewann das Finale."
PLACES = ["v1", "v2", "v3"]


@dataclass
class FakeManifest:
    version: str
    labels: tuple[str, ...] = ()


@dataclass
class FakeClassifier:
    bundle: Any


class FakeLoader:
    """Bundles that are names of places; those in ``broken`` can't be loaded."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.endless: set[str] = set()
        self.rehearsed: list[str] = []

    def seal(self, place: str, digest: str = "") -> Any:
        return SimpleNamespace(place=place, digest=digest_of(place), copied=True)

    def rehearse(self, bundle: Any, stopped: Callable[[], bool]) -> None:
        self.rehearsed.append(bundle.place)
        if bundle.place in self.endless:
            while not stopped():
                time.sleep(0.01)
            raise Stopped

    def open(self, bundle: Any) -> Any:
        if bundle.place in self.broken:
            raise BundleError(bundle.place, "is broken")
        bundle.manifest = FakeManifest(bundle.place)
        return FakeClassifier(bundle)


def digest_of(place: str) -> str:
    return hashlib.sha256(place.encode()).hexdigest()


def worker(folder: Path, loader: FakeLoader, process: int | None = None) -> Registry:
    shared = Shared(folder, {"a": "v0", "b": "v0"}, process=process)
    return Registry(shared, loader, Log(io.StringIO()))  # type: ignore[arg-type]


def has(registry: Registry) -> dict[str, str]:
    return {name: slot.place for name, slot in registry._slots.items() if isinstance(slot, Loaded)}


class Workers(RuleBasedStateMachine):
    """Two workers, one step at a time, in any order, with whatever may happen in between. Each has
    always all of one thing that was agreed, and what is agreed is only what both were ready for."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.children = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
        self.loaders = [FakeLoader(), FakeLoader()]
        self.workers = [self._new(number) for number in range(2)]
        self.agreed = [{"a": "v0", "b": "v0"}]
        self.turn: contextlib.ExitStack | None = None
        self.proposal: Wanted | None = None
        self.spoiled = False

    def _new(self, number: int) -> Registry:
        made = worker(self.folder, self.loaders[number], self.children[number].pid)
        made.load()
        return made

    def teardown(self) -> None:
        if self.turn is not None:
            self.turn.close()
        for child in self.children:
            child.kill()
            child.wait()
        self.stack.close()

    @rule(number=st.integers(0, 1))
    def look(self, number: int) -> None:
        self.workers[number].look()

    @rule(number=st.integers(0, 1), place=st.sampled_from(PLACES))
    def breaks(self, number: int, place: str) -> None:
        self.loaders[number].broken ^= {place}

    @precondition(lambda self: self.turn is None)
    @rule(name=st.sampled_from("ab"), place=st.sampled_from([*PLACES, None]))
    def propose(self, name: str, place: str | None) -> None:
        shared = self.workers[0].shared
        self.turn = contextlib.ExitStack()
        self.turn.enter_context(shared.turn())
        base = max((w.state for w in self.workers), key=lambda wanted: wanted.generation)
        if place is None and name in base.bundles and len(base.bundles) > 1:
            self.proposal = base.lacking(name)
        else:
            self.proposal = base.having(name, place or "v3", digest_of(place or "v3"))
        shared.propose(self.proposal)

    @precondition(lambda self: self.turn is not None)
    @rule(killed=st.booleans())
    def decide(self, killed: bool) -> None:
        """Commit if all are ready; else take it back, or be killed before."""
        assert self.turn is not None
        assert self.proposal is not None
        shared = self.workers[0].shared
        told = shared.workers()
        assert len(told) == 2
        if not killed and all(
            one.ready == self.proposal.attempt and not one.error for one in told.values()
        ):
            shared.commit()
            self.spoiled = False
            self.agreed.append(self.proposal.bundles)
        elif not killed:
            shared.abort()
        self.turn.close()
        self.turn = self.proposal = None

    @rule(number=st.integers(0, 1))
    def restart(self, number: int) -> None:
        """Killed, and there again: with what is agreed, or with less where that can't be loaded."""
        self.children[number].kill()
        self.children[number].wait()
        self.children[number] = subprocess.Popen(["sleep", "600"])
        self.workers[number] = self._new(number)

    @precondition(lambda self: len(self.agreed) > 1)
    @rule(content=st.sampled_from([b"", b"{", b"\x00" * 50]))
    def spoil(self, content: bytes) -> None:
        (self.folder / "bundles.json").write_bytes(content)
        self.spoiled = True

    @invariant()
    def nobody_has_what_was_not_agreed(self) -> None:
        for one in self.workers:
            assert one.state.bundles in self.agreed
            assert set(one._slots) == set(one.state.bundles)
            for name, place in has(one).items():  # an old one, at worst, never one that is to come
                assert place in [state.get(name) for state in self.agreed]

    @invariant()
    def who_looks_has_the_newest(self) -> None:
        if self.turn is not None or self.spoiled:
            return
        for one, loader in zip(self.workers, self.loaders, strict=True):
            one.look()
            one._again_at.clear()
            one.look()
            assert one.state.bundles == self.agreed[-1]
            assert one._ready is None
            if not loader.broken:
                assert has(one) == self.agreed[-1]


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(
    max_examples=15,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "600"])
    yield child
    child.kill()
    child.wait()


def until(true: Callable[[], Any], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_worker_that_can_not_read_for_a_moment_follows_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = worker(tmp_path / "state", FakeLoader())
    registry.load()
    shared = registry.shared
    shared.propose(registry.state.having("a", "v1", digest_of("v1")))
    shared.commit()
    with monkeypatch.context() as patched:
        failing = OSError(24, "Too many open files")

        def fails() -> Wanted:
            raise failing

        patched.setattr(shared, "committed", fails)
        edition = registry.edition()
        registry.look()
        registry.look()
        assert registry.edition() != edition
        assert [one["code"] for one in json.loads(registry.described(10**6))["warnings"]] == [
            "state_unreadable"
        ]
        assert has(registry) == {"a": "v0", "b": "v0"}
    registry.look()
    assert has(registry) == {"a": "v1", "b": "v0"}
    assert json.loads(registry.described(10**6))["warnings"] == []
    written = registry.log._stream.getvalue()  # type: ignore[union-attr]
    assert written.count("state_unreadable") == 2  # that it is, and that it is over
    assert "Too many open files" in written


def test_what_could_not_be_reported_is_reported_later(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    registry = worker(tmp_path / "state", FakeLoader())
    registry.load()
    registry.look()
    codes = [one["code"] for one in json.loads(registry.described(10**6))["warnings"]]
    assert codes == ["state_unreadable", "state_unwritable"]
    assert has(registry) == {"a": "v0", "b": "v0"}
    (tmp_path / "state").unlink()
    registry._seldom_at = 0
    registry.look()
    assert json.loads(registry.described(10**6))["warnings"] == []
    assert list(registry.shared.workers()) == [os.getpid()]


def test_a_worker_that_starts_takes_the_version_that_others_have(
    tmp_path: Path, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = FakeLoader()
    first = worker(tmp_path, loader)
    first.load()
    monkeypatch.setattr(
        loader,
        "seal",
        lambda place, digest="": SimpleNamespace(place=place, digest=digest_of("something newer")),
    )
    second = worker(tmp_path, loader, other.pid)
    second.load()
    assert has(second) == {}
    with pytest.raises(Refusal, match=r"can't be loaded \(bundle_altered\)") as refused:
        second.get(None)
    assert refused.value.status == 503


def test_a_bundle_that_is_missing_is_not_replaced_by_another(tmp_path: Path) -> None:
    loader = FakeLoader()
    loader.broken = {"first"}
    shared = Shared(tmp_path, {"a": "first", "b": "second"})
    registry = Registry(shared, loader, Log(io.StringIO()))  # type: ignore[arg-type]
    registry.load()
    assert [loaded.name for loaded in registry.all()] == ["b"]
    assert registry.get("b").place == "second"
    for asked in (None, "a"):
        with pytest.raises(Refusal) as refused:
            registry.chosen(asked, lambda bundle: True)
        assert (refused.value.status, refused.value.code) == (503, "bundle_unavailable")
    loader.broken.clear()
    registry._again_at.clear()
    registry.look()
    assert registry.get(None).place == "first"
    assert list(registry._slots) == ["a", "b"]


def test_every_load_is_rehearsed_and_none_keeps_a_worker_from_a_swap(tmp_path: Path) -> None:
    loader = FakeLoader()
    loader.endless = {"v0"}
    registry = worker(tmp_path, loader)
    shared = registry.shared
    timer = threading.Timer(0.2, lambda: shared.propose(state_of(registry)))
    starting = threading.Thread(target=registry.load)
    starting.start()
    timer.start()
    starting.join(20)
    assert not starting.is_alive()
    assert has(registry) == {}
    loader.endless, loader.broken = set(), {"v0"}
    with shared.turn():
        registry.look()
        told = shared.workers()[os.getpid()]
        assert (told.ready, told.error) == ("attempt", "")
        shared.commit()
        registry.look()
    assert has(registry) == {"a": "v1", "b": "v1"}
    assert loader.rehearsed.count("v1") == 2


def state_of(registry: Registry) -> Wanted:
    both, changed = {"a": "v1", "b": "v1"}, {"a": 1, "b": 1}
    return Wanted(1, both, changed, dict.fromkeys("ab", digest_of("v1")), "attempt")


def test_a_generation_is_reported_once_nothing_answers_from_an_older_one(tmp_path: Path) -> None:
    loader = FakeLoader()
    registry = worker(tmp_path, loader)
    registry.load()
    shared = registry.shared
    assert shared.workers()[os.getpid()].reached == 0
    shared.propose(state_of(registry))
    shared.commit()
    loader.broken = {"v1"}
    registry.look()
    assert registry.state.generation == 1
    assert has(registry) == {"a": "v0", "b": "v0"}
    assert shared.workers()[os.getpid()].reached == 0
    loader.broken.clear()
    registry._again_at.clear()
    registry.look()
    assert has(registry) == {"a": "v1", "b": "v1"}
    assert shared.workers()[os.getpid()].reached == 1


def test_what_was_swapped_out_is_destroyed_by_the_registrys_thread(tmp_path: Path) -> None:
    """Not by the event loop, where the last request that holds it ends."""
    destroyed = list[tuple[str, str]]()

    class Opened(FakeClassifier):
        def __del__(self) -> None:
            destroyed.append((self.bundle.place, threading.current_thread().name))

    class Opens(FakeLoader):
        def open(self, bundle: Any) -> Any:
            return Opened(super().open(bundle).bundle)

    registry = worker(tmp_path, Opens())

    def look() -> None:
        thread = threading.Thread(target=registry.look, name="of the registry")
        thread.start()
        thread.join()

    registry.load()
    held = [registry.get("a"), registry.get("b")]
    with registry.shared.turn():
        registry.shared.propose(state_of(registry))
        look()
        registry.shared.commit()
        look()
    look()
    assert has(registry) == {"a": "v1", "b": "v1"}
    held.clear()
    assert not destroyed
    look()
    assert destroyed == [("v0", "of the registry")] * 2
    with registry.shared.turn():  # and what was got ready in vain
        registry.shared.propose(replace(state_of(registry), generation=2, changed={"a": 2, "b": 1}))
        look()
        assert registry._ready is not None
        registry.shared.abort()
    look()
    look()
    assert destroyed == [("v0", "of the registry")] * 2 + [("v1", "of the registry")]


# The application itself.


def test_models_are_described_once_a_second_and_anew_after_a_swap(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "SHARED", 1e9)
    described, times = Registry.described, list[int]()

    def counted(self: Registry, largest: int) -> bytes:
        times.append(largest)
        return described(self, largest)

    monkeypatch.setattr(Registry, "described", counted)
    client = start(admin_keys=("a" * 16,))
    told = {client.get("/models").content for _ in range(20)}
    assert len(told) == len(times) == 1
    answer = client.post("/models", json={"name": "topics"}, headers=ADMIN)
    assert answer.json()["generation"] == 1, answer.text
    assert client.get("/models").json()["generation"] == 1
    assert len(times) <= 3


def overwritten(file: Path) -> None:
    file.chmod(0o600)
    with file.open("r+b") as handle:
        handle.seek(4096)
        handle.write(b"\x7f" * 2_000_000)


def sealed_in(state: Path) -> list[Path]:
    """The copies; beside them stand the marks of those that were tried."""
    return [found for found in (state / "sealed").iterdir() if found.is_dir()]


def codes(client: Local) -> list[str]:
    return [one["code"] for one in valid("Models", client.get("/models").json())["warnings"]]


def test_manifests_are_written_as_json_once_and_left_out_where_they_are_too_large(
    start: Start,
) -> None:
    client = start()
    [loaded] = client.app.app.state.service.registry.all()  # type: ignore[union-attr]
    told = client.get("/models")
    assert loaded.manifest in told.content  # the very bytes
    [model] = valid("Models", told.json())["models"]
    assert model["manifest"]["labels"] == list(loaded.bundle.manifest.labels)
    assert len(told.content) - len(loaded.manifest) < registries.OTHERWISE
    client = start(max_answer=registries.OTHERWISE + len(loaded.manifest) - 1)
    assert codes(client) == ["manifests_left_out"]
    [model] = client.get("/models").json()["models"]
    assert (model["name"], model["manifest"]) == ("topics", {})


def test_an_origin_that_is_altered_is_told_and_does_not_matter(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "SELDOM", 0.1)
    origin = copied(tmp_path / "origin", "whose origin is altered")
    client = start(bundles={"hurt": str(origin)})
    asked = {"texts": [TEXT]}
    before = client.post("/classify", json=asked).json()["predictions"]
    assert codes(client) == []
    overwritten(origin / "weights.bin")
    until(lambda: codes(client) == ["origin_altered"])
    os.truncate(origin / "weights.bin", 4096)
    answer = client.post("/classify", json=asked)
    assert answer.json()["predictions"] == before
    shutil.rmtree(origin)
    assert client.post("/classify", json=asked).json()["predictions"] == before
    told = [line for line in client.lines() if line["event"] == "origin_altered"]
    assert len(told) == 1
    assert 'xlt_warnings{code="origin_altered"} 1.0' in client.get("/metrics").text


def test_a_copy_that_is_altered_answers_no_more_and_is_made_anew(
    start: Start, tmp_path: Path
) -> None:
    origin = copied(tmp_path / "origin", "whose copy is altered")
    state = tmp_path / "state"
    client = start(bundles={"hurt": str(origin)}, state=state)
    asked = {"texts": [TEXT] * 3}
    before = client.post("/classify", json=asked).json()["predictions"]
    (copy,) = sealed_in(state)
    overwritten(copy / "weights.bin")
    statuses = set()
    end = time.monotonic() + 120
    while time.monotonic() < end:
        answer = client.post("/classify", json=asked)
        statuses.add(answer.status_code)
        if answer.status_code == 200:
            assert answer.json()["predictions"] == before  # right, or none
            break
        assert valid("Error", answer.json())["error"]["code"] == "bundle_unavailable"
    assert statuses == {503, 200}
    until(lambda: codes(client) == [])
    assert "bundle_altered" in [line["event"] for line in client.lines()]
    # And where the origin is no better, it stays away, and says so.
    overwritten(origin / "weights.bin")
    (copy,) = sealed_in(state)
    overwritten(copy / "weights.bin")
    until(lambda: "bundle_missing" in codes(client))
    assert client.post("/classify", json=asked).status_code == 503
    assert client.get("/models").json()["models"] == []


def test_a_service_comes_up_with_a_corrupt_state_and_without_one_of_its_bundles(
    start: Start, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "bundles.json").write_bytes(b"\x00{")
    broken = copied(tmp_path / "broken", "to be broken")
    (broken / "plain.onnx").write_bytes(b"no graph")
    bundles = {"topics": "topics", "broken": str(broken)}
    client = start(bundles=bundles, state=state, admin_keys=("a" * 16,))
    assert client.app.app.state.service.ready  # type: ignore[union-attr]
    assert client.post("/classify", json={"texts": [TEXT]}).status_code == 200
    away = client.post("/classify", json={"texts": [TEXT], "bundle": "broken"})
    assert away.status_code == 503
    assert away.headers["retry-after"]
    assert str(tmp_path) not in client.get("/models").text
    assert set(codes(client)) == {"state_unreadable", "bundle_missing"}
    # An unload mends the one, and its commit the other.
    answer = client.post("/models/unload", json={"name": "broken"}, headers=ADMIN)
    assert answer.status_code == 200, answer.text
    assert answer.json()["generation"] == 1
    until(lambda: codes(client) == [])


def test_a_state_that_can_not_be_written_refuses_swaps_and_nothing_else(
    start: Start, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.touch()
    client = start(state=state, admin_keys=("a" * 16,))
    assert client.post("/classify", json={"texts": [TEXT]}).status_code == 200
    refused = client.post("/models", json={"name": "topics"}, headers=ADMIN)
    assert refused.status_code == 500
    assert valid("Error", refused.json())["error"]["code"] == "state"
    assert {"state_unreadable", "state_unwritable", "not_sealed"} == set(codes(client))
    assert client.get("/models").json()["generation"] == 0


def test_an_unload_frees_memory_and_the_copy_and_spares_the_last(
    start: Start, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    other = copied(tmp_path / "other", "to be unloaded")
    bundles = {"other": str(other), "topics": "topics"}
    client = start(bundles=bundles, state=state, admin_keys=("a" * 16,))
    client.post("/classify", json={"texts": [TEXT] * 64, "bundle": "other"})
    assert len(sealed_in(state)) == 2
    before = psutil.Process().memory_info().rss
    answer = client.post("/models/unload", json={"name": "other"}, headers=ADMIN)
    (left,) = valid("Models", answer.json())["models"]
    assert (left["name"], left["default"]) == ("topics", True)
    until(lambda: len(sealed_in(state)) == 1)
    weights = (other / "weights.bin").stat().st_size
    until(lambda: psutil.Process().memory_info().rss < before - weights)
    gone = client.post("/classify", json={"texts": [TEXT], "bundle": "other"})
    assert gone.status_code == 404
    again = client.post("/models/unload", json={"name": "other"}, headers=ADMIN)
    assert again.status_code == 404
    last = client.post("/models/unload", json={"name": "topics"}, headers=ADMIN)
    assert last.status_code == 409
    assert valid("Error", last.json())["error"]["code"] == "last_bundle"
    assert client.post("/models/unload", json={"name": "topics"}).status_code == 401
    back = client.post("/models", json={"name": "other", "bundle": str(other)}, headers=ADMIN)
    assert [model["name"] for model in back.json()["models"]] == ["topics", "other"]


def test_what_was_altered_is_let_go_before_its_copy_is_loaded_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both together might not fit into memory."""
    registry = worker(tmp_path, FakeLoader())
    registry.load()
    altered = next(one.bundle for one in registry.all() if one.name == "b")
    before = weakref.ref(next(one.classifier for one in registry.all() if one.name == "b"))
    monkeypatch.setattr(registries.sealed, "intact", lambda bundle: bundle is not altered)
    alive = []
    load = registry.loader.open
    monkeypatch.setattr(
        registry.loader, "open", lambda bundle: alive.append(before()) or load(bundle)
    )
    registry.look()
    assert alive == [None]
    assert has(registry) == {"a": "v0", "b": "v0"}
