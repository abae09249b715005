"""Swaps over workers of which one is stopped or killed, whose client leaves, whose disk is full."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.xlt_serve.serving.conftest import Start, copied, valid
from tests.xlt_serve.serving.processes import Running, serving
from tests.xlt_serve.serving.test_rehearsal import endless, saved
from xlt_serve.bench.server_process import until_ready
from xlt_serve.bundle import Bundle
from xlt_serve.serving import swaps
from xlt_serve.serving.loading import Loader
from xlt_serve.serving.registry import Registry
from xlt_serve.serving.sealed import SealedBundle
from xlt_serve.serving.worker_state import Report, Shared

ADMIN = {"X-API-Key": "a" * 16}
TEXT = "Die Mannschaft gewann das Finale."
LIMIT = 30.0
BUNDLES = {"topics": "topics", "topics-paired": "topics-paired"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("swaps")
    settings = {"XLT_ADMIN_KEYS": "a" * 16, "XLT_LOAD_TIMEOUT": str(LIMIT)}
    with serving(folder, "--workers", "2", **settings) as made:
        yield made


def post(running: Running, path: str, body: Any) -> httpx.Response:
    return httpx.post(f"{running.url}{path}", json=body, headers=ADMIN, timeout=60)


def models(running: Running) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{running.url}/models", timeout=20).json()
    return found


def versions(running: Running) -> dict[str, str]:
    return {one["name"]: one["manifest"]["version"] for one in models(running)["models"]}


def version_of(place: Path) -> str:
    return str(json.loads((place / "bundle.json").read_text())["version"])


def answering(running: Running, bundle: str = "topics") -> set[tuple[int, str]]:
    """What answers come from, by new connections, so that both workers are asked."""
    found = set()
    for _ in range(12):
        body = {"texts": [TEXT], "bundle": bundle}
        got = httpx.post(f"{running.url}/classify", json=body, timeout=20)
        found.add((got.status_code, got.json().get("bundle", {}).get("version", "")))
    return found


def until(true: Callable[[], Any], seconds: float = 40) -> None:
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if true():
                return
        assert time.monotonic() < end
        time.sleep(0.1)


def reports(running: Running) -> dict[int, Any]:
    folder = running.log.parent / "state"
    return {int(f.stem[7:]): json.loads(f.read_text()) for f in folder.glob("worker-*.json")}


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Shared]:
    """A worker that lives and never answers."""
    child = subprocess.Popen(["sleep", "600"])
    yield Shared(tmp_path / "state", BUNDLES, process=child.pid)
    child.kill()
    child.wait()


def test_a_worker_that_does_not_answer_stops_a_swap(start: Start, silent: Shared) -> None:
    client = start(bundles=BUNDLES, state=silent.folder, admin_keys=("a" * 16,), load_timeout=2.0)
    silent.report(Report(silent.first))
    refused = client.post("/models/unload", json={"name": "topics-paired"}, headers=ADMIN)
    assert refused.status_code == 500
    error = valid("Error", refused.json())["error"]
    assert error["code"] == "swap_failed"
    assert "1 workers were not ready" in error["message"]
    assert "nothing was changed" in error["message"]
    assert client.get("/models").json()["generation"] == 0
    assert silent.proposed() is None
    # One that can't load it stops it too, in its own words.
    thread = threading.Thread(target=_tells, args=(silent, "no room"))
    thread.start()
    refused = client.post("/models/unload", json={"name": "topics-paired"}, headers=ADMIN)
    thread.join()
    assert "1 of 2 workers could not load it: no room" in refused.json()["error"]["message"]


def _tells(shared: Shared, error: str) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if (wanted := shared.proposed()) is not None:
            shared.report(Report(shared.first, wanted.attempt, error))
            return
        time.sleep(0.01)


def test_a_swap_is_not_said_to_have_failed_once_it_is_agreed(
    start: Start, silent: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was ready, and is stopped just then."""
    monkeypatch.setattr(swaps, "FOLLOWED", 0.3)
    client = start(bundles=BUNDLES, state=silent.folder, admin_keys=("a" * 16,))
    silent.report(Report(silent.first))
    thread = threading.Thread(target=_tells, args=(silent, ""))
    thread.start()
    done = client.post("/models/unload", json={"name": "topics-paired"}, headers=ADMIN)
    thread.join()
    assert done.status_code == 200, done.text
    assert silent.committed().bundles == {"topics": "topics"}
    until(
        lambda: (
            "workers_behind" in [one["code"] for one in client.get("/models").json()["warnings"]]
        )
    )


def slow_to_seal(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[float]:
    """Copying takes so long; what the rehearsal is given of the time."""
    seal, given = Loader.seal, list[float]()

    def slow(self: Loader, place: str, digest: str = "", end: float = 0) -> SealedBundle:
        time.sleep(0 if digest else seconds)
        return seal(self, place, digest)

    def rehearse(self: Loader, bundle: Bundle, stopped: object, seconds: float = 0) -> None:
        given.append(seconds)

    monkeypatch.setattr(Loader, "seal", slow)
    monkeypatch.setattr(Loader, "rehearse", rehearse)
    return given


def test_the_limit_is_one_for_all_that_a_swap_does(
    start: Start, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = start(admin_keys=("a" * 16,), load_timeout=10.0)
    body = {"name": "topics", "bundle": str(second)}
    with monkeypatch.context() as patch:
        given = slow_to_seal(patch, 1.0)
        client.post("/models", json=body, headers=ADMIN)
        assert 0 < given[0] < 9.01
    generation = client.get("/models").json()["generation"]
    with monkeypatch.context() as patch:
        given = slow_to_seal(patch, 10.1)
        refused = client.post("/models", json=body, headers=ADMIN)
    assert refused.status_code == 422
    assert "was not copied and verified within 10 s" in refused.json()["error"]["message"]
    assert not given
    assert client.get("/models").json()["generation"] == generation


def test_a_system_without_room_for_a_process_is_no_other_swap(
    start: Start, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EAGAIN, which a lock that is taken says too."""

    def full(*call: object, **options: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    client = start(admin_keys=("a" * 16,))
    monkeypatch.setattr(subprocess, "Popen", full)
    body = {"name": "topics", "bundle": str(second)}
    refused = client.post("/models", json=body, headers=ADMIN)
    assert refused.status_code == 500
    error = valid("Error", refused.json())["error"]
    assert error["code"] == "swap_failed"
    assert "it could not be tried (Resource temporarily" in error["message"]


def test_the_last_bundle_is_the_last_of_those_that_are_agreed(
    start: Start, silent: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker unloaded one, and this one has yet to follow."""
    client = start(bundles=BUNDLES, state=silent.folder, admin_keys=("a" * 16,), load_timeout=2.0)
    monkeypatch.setattr(Registry, "look", lambda self: None)
    silent.propose(silent.committed().lacking("topics-paired"))
    silent.commit()
    refused = client.post("/models/unload", json={"name": "topics"}, headers=ADMIN)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "last_bundle")


@pytest.mark.slow
def test_a_stopped_worker_stops_a_swap_and_nothing_else(running: Running, tmp_path: Path) -> None:
    place = copied(tmp_path / "new", "for a stopped worker")
    before = versions(running)
    stopped = running.workers()[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        refused = post(running, "/models", {"name": "topics", "bundle": str(place)})
        assert time.monotonic() - begun < LIMIT + 10
        assert refused.status_code == 500
        assert refused.json()["error"]["code"] == "swap_failed"
        assert "nothing was changed" in refused.json()["error"]["message"]
        assert versions(running) == before
    finally:
        os.kill(stopped, signal.SIGCONT)
    time.sleep(1)
    assert answering(running) == {(200, before["topics"])}
    assert not [report for report in reports(running).values() if report["ready"]]
    assert not (running.log.parent / "state" / "proposal.json").exists()
    done = post(running, "/models", {"name": "topics", "bundle": str(place)})
    assert done.status_code == 200, done.text
    assert done.json()["workers"] == 2
    assert answering(running) == {(200, version_of(place))}


@pytest.mark.slow
def test_a_worker_that_is_stopped_before_the_commit_follows(
    running: Running, tmp_path: Path
) -> None:
    place = copied(tmp_path / "new", "to be followed")
    answers: list[httpx.Response] = []
    body = {"name": "topics", "bundle": str(place)}
    stopped: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(post(running, "/models", body)))
    thread.start()
    end = time.monotonic() + 30
    while not stopped and time.monotonic() < end:  # the moment in which one is ready
        for process, report in reports(running).items():
            if report["ready"] and not stopped:
                os.kill(process, signal.SIGSTOP)
                stopped.append(process)
        time.sleep(0.001)
    thread.join(5)
    os.kill(stopped[0], signal.SIGCONT)
    thread.join(30)
    assert answers[0].status_code == 200, answers[0].text
    until(lambda: answering(running) == {(200, version_of(place))}, 10)


@pytest.mark.slow
def test_a_client_that_leaves_does_not_halve_a_swap(running: Running, tmp_path: Path) -> None:
    place = copied(tmp_path / "new", "asked for by somebody who left")
    body = json.dumps({"name": "topics", "bundle": str(place)}).encode()
    port = int(running.url.rsplit(":", 1)[1])
    line = socket.create_connection(("127.0.0.1", port))
    line.sendall(
        b"POST /models HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-API-Key: "
        + b"a" * 16
        + f"\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    time.sleep(0.3)
    line.close()
    until(lambda: answering(running) == {(200, version_of(place))})


@pytest.mark.slow
def test_a_killed_worker_comes_back_with_what_is_agreed_whatever_the_state(
    running: Running, tmp_path: Path
) -> None:
    """Corrupt file, origin deleted: the other worker knows what holds, and has the copy."""
    place = copied(tmp_path / "new", "for a killed worker")
    version = version_of(place)
    done = post(running, "/models", {"name": "topics", "bundle": str(place)})
    assert done.status_code == 200, done.text
    state = running.log.parent / "state" / "bundles.json"
    good = state.read_bytes()
    try:
        for spoil in (lambda: state.write_bytes(good[:30]), lambda: shutil.rmtree(place)):
            spoil()
            killed = running.workers()[0]
            os.kill(killed, signal.SIGKILL)
            assert httpx.get(f"{running.url}/livez", timeout=5).status_code == 200
            until(lambda: len(set(running.workers()) - {killed}) == 2)  # noqa: B023
            until(lambda: models(running)["workers"] == 2)
            until(lambda: all(r["state"] for r in reports(running).values()))
            assert answering(running) == {(200, version)}
            codes = {one["code"] for one in models(running)["warnings"]}
            assert "state_unreadable" in codes
        until(lambda: "origin_altered" in {one["code"] for one in models(running)["warnings"]})
    finally:
        state.write_bytes(good)
    text = httpx.get(f"{running.url}/metrics", timeout=20).text
    assert 'xlt_warnings{code="origin_altered"} 2.0' in text


@pytest.mark.slow
def test_a_service_that_ends_does_not_wait_for_a_rehearsal(tmp_path: Path) -> None:
    bundle = saved(tmp_path / "endless", endless)
    with serving(tmp_path, XLT_ADMIN_KEYS="a" * 16) as running:
        answers: list[Any] = []

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                body = {"name": "topics", "bundle": str(bundle.path)}
                answers.append(post(running, "/models", body).status_code)

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(4)
        begun = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 0
        assert time.monotonic() - begun < 15
        thread.join(5)
        assert answers in ([503], [])
    left = subprocess.run(
        ["pgrep", "-f", f"rehearsal.*{tmp_path}"], capture_output=True, check=False
    )
    assert left.stdout == b""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_a_full_disk_under_the_state(tmp_path: Path) -> None:
    mount = tmp_path / "state"
    mount.mkdir()
    call = ["mount", "-t", "tmpfs", "-o", "size=300m,mode=700", "tmpfs", str(mount)]
    if subprocess.run(call, capture_output=True, check=False).returncode:
        pytest.skip("no mounts here")
    place = copied(tmp_path / "new", "for a full disk")
    settings = {"XLT_ADMIN_KEYS": "a" * 16, "XLT_LOAD_TIMEOUT": str(LIMIT)}
    try:
        with serving(tmp_path, "--workers", "2", **settings) as running:
            before = versions(running)
            with contextlib.suppress(OSError), (mount / "filling").open("wb", 0) as file:
                while True:
                    file.write(bytes(4096))
            refused = post(running, "/models", {"name": "topics", "bundle": str(place)})
            assert refused.status_code == 500, refused.text
            assert versions(running) == before
            killed = running.workers()[0]
            os.kill(killed, signal.SIGKILL)
            assert httpx.get(f"{running.url}/livez", timeout=5).status_code == 200
            until(lambda: len(set(running.workers()) - {killed}) == 2)
            until_ready(running)
            time.sleep(3)
            assert answering(running) == {(200, before["topics"])}
            assert not list(mount.glob("*.half"))
            (mount / "filling").unlink()
            until(lambda: models(running)["workers"] == 2)
            done = post(running, "/models", {"name": "topics", "bundle": str(place)})
            assert done.status_code == 200, done.text
            assert answering(running) == {(200, version_of(place))}
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)
