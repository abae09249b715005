"""The folder that workers agree through: what it holds, and what may become of it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.serving import worker_state
from xlt_serve.serving.worker_state import Corrupt, Notice, Report, Shared, Wanted, recovered

DIGEST = "0123456789abcdef" * 4


def test_workers_agree_through_a_folder_that_goes_with_the_last(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    first = Shared(folder, {"a": "x"})
    first.report(Report(first.first))
    assert first.committed() == Wanted(0, {"a": "x"})
    assert list(first.workers()) == [os.getpid()]
    (folder / "worker-999999999.json").write_text("{}")  # killed: nobody has this id
    assert list(first.workers()) == [os.getpid()]
    first.leave()
    assert not folder.exists()
    second = Shared(folder, {"a": "x", "b": "y"})
    wanted = second.committed().having("b", "z", DIGEST)
    with second.turn():
        second.propose(wanted)
        with pytest.raises(BlockingIOError), Shared(folder, {}).turn():
            pass
        assert second.proposed() == wanted
        assert second.committed().generation == 0
        second.commit()
    assert second.proposed() is None
    second.leave()
    again = Shared(folder, {"a": "x", "b": "y"})  # a worker that takes another's place
    assert again.committed() == wanted
    assert (wanted.bundles, wanted.changed) == ({"a": "x", "b": "z"}, {"b": 1})
    assert replace(wanted.lacking("b"), attempt="") == Wanted(2, {"a": "x"})
    other = Shared(folder, {"c": "w"})  # a service that was started anew, to serve something else
    assert other.committed() == Wanted(0, {"c": "w"})


def test_what_an_older_version_wrote_is_read(tmp_path: Path) -> None:
    shared = Shared(tmp_path, {"a": "x"})
    old = {"generation": 2, "bundles": {"a": "y"}, "changed": {"a": 2}, "configured": {"a": "x"}}
    (tmp_path / "bundles.json").write_text(json.dumps(old))
    assert shared.committed() == Wanted(2, {"a": "y"}, {"a": 2})


def _state(**change: object) -> bytes:
    good = {"generation": 1, "bundles": {"a": "y"}, "changed": {"a": 1}, "configured": {"a": "x"}}
    return json.dumps(good | change).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        _state()[:-9],
        os.urandom(200),
        b"[]",
        b"[" * 100_000,
        _state(generation=float("nan")),
        _state(generation=-1),
        _state(generation="1"),
        _state(generation=True),
        _state(bundles=[]),
        _state(bundles={}),
        _state(bundles={"a": 1}),
        _state(changed={"b": 1}),
        _state(changed={"a": 9}),
        _state(changed={"a": 1.5}),
        _state(digests={"a": 3}),
        _state(attempt=None),
        _state(pad="x" * worker_state.LARGEST),
    ],
)
def test_a_corrupt_file_is_an_error_of_one_kind(tmp_path: Path, content: bytes) -> None:
    shared = Shared(tmp_path, {"a": "x"})
    (tmp_path / "bundles.json").write_bytes(content)
    with pytest.raises(Corrupt):
        shared.committed()
    mine = tmp_path / f"worker-{os.getpid()}.json"
    mine.write_bytes(content)
    assert list(shared.workers()) in ([os.getpid()], [])  # never an exception


def _folder(file: Path) -> None:
    file.mkdir()


def _pipe(file: Path) -> None:
    os.mkfifo(file)


def _endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


def _unlinked_folder(file: Path) -> None:
    file.parent.rmdir()
    file.parent.touch()


@pytest.mark.parametrize("plant", [_folder, _pipe, _endless, _unlinked_folder])
def test_what_is_no_file_neither_blocks_nor_fills_anybody(
    tmp_path: Path, plant: Callable[[Path], None]
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    plant(folder / "bundles.json")
    with pytest.raises(OSError, match=r"no file|no folder|symbolic links|Is a directory"):
        Shared(folder, {"a": "x"}).committed()


@given(st.binary(max_size=300))
def test_no_bytes_are_anything_but_a_state_or_corrupt(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "proposal.json").write_bytes(content)
        with contextlib.suppress(Corrupt):
            assert Shared(Path(folder), {"a": "x"}).proposed() is None


def test_a_write_that_fails_leaves_nothing_and_changes_nothing(tmp_path: Path) -> None:
    shared = Shared(tmp_path / "state", {"a": "x"})
    shared.propose(shared.first.having("a", "y", DIGEST))
    shared.commit()
    before = shared.committed()
    code = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # as a full disk
    try:
        with pytest.raises(OSError, match="File too large"):
            shared.propose(before.lacking("a"))
        with pytest.raises(OSError, match="File too large"):
            shared.report(Report(before))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, code)
    assert [file.name for file in shared.folder.iterdir()] == ["bundles.json"]
    assert shared.committed() == before
    assert shared.proposed() is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_folder_of_somebody_else_is_neither_read_nor_written(tmp_path: Path) -> None:
    shared = Shared(tmp_path / "state", {"a": "x"})
    shared.propose(shared.first.having("a", "evil", DIGEST))
    shared.commit()
    os.chown(shared.folder, 12345, 12345)
    for ask in (shared.committed, shared.workers, lambda: shared.report(Report())):
        with pytest.raises(PermissionError, match="belongs to somebody else"):
            ask()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_file_of_somebody_else_in_a_folder_of_ours_is_not_believed(tmp_path: Path) -> None:
    shared = Shared(tmp_path / "state", {"a": "x"})
    shared.propose(shared.first.having("a", "evil", DIGEST))
    shared.commit()
    shared.folder.chmod(0o777)
    os.chown(shared.folder / "bundles.json", 12345, 12345)
    with pytest.raises(Corrupt, match="belongs to somebody else"):
        shared.committed()
    assert shared.folder.stat().st_mode & 0o777 == 0o700


def test_a_zombie_is_no_worker(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    told: list[int] = []
    shared = Shared(tmp_path, {"a": "x"}, on_killed=told.append, process=child.pid)
    shared.report(Report(shared.first))
    assert list(shared.workers()) == [child.pid]
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has asked for it
    assert shared.workers() == {}
    assert told == [child.pid]
    child.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system tells the time of day")
def test_a_clock_that_is_set_ends_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the system says of a boot's time moves along with the clock."""
    told: list[int] = []
    shared = Shared(tmp_path, {"a": "x"}, on_killed=told.append)
    shared.report(Report(shared.first))
    folder = worker_state.default_folder()
    before = psutil.Process().create_time()
    boot = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot + 3600)
    assert psutil.Process().create_time() - before == pytest.approx(3600, abs=2)
    assert list(shared.workers()) == [os.getpid()]
    assert worker_state.default_folder() == folder
    assert not told


def test_another_process_with_the_number_of_a_worker_is_none(tmp_path: Path) -> None:
    told: list[int] = []
    shared = Shared(tmp_path, {"a": "x"}, on_killed=told.append)
    mine = tmp_path / f"worker-{os.getpid()}.json"
    for since in ("1a2b3c4d-5", 1.7e9, None, [], True):  # also as earlier versions wrote it
        shared.report(Report(shared.first))
        mine.write_text(json.dumps(json.loads(mine.read_text()) | {"since": since}))
        assert shared.workers() == {}
        assert not mine.exists()
    assert told == [os.getpid()] * 5


def test_reports_come_back_as_they_were(tmp_path: Path) -> None:
    shared = Shared(tmp_path, {"a": "x"})
    report = Report(
        shared.first.having("a", "y", DIGEST), "attempt", "error", (Notice("code", "text", "a"),)
    )
    shared.report(report)
    assert shared.workers() == {os.getpid(): report}
    assert shared.still_reported()
    (tmp_path / f"worker-{os.getpid()}.json").unlink()
    assert not shared.still_reported()


def test_an_abandoned_proposal_is_dropped_and_no_other(tmp_path: Path) -> None:
    shared = Shared(tmp_path, {"a": "x"})
    with shared.turn():
        shared.propose(shared.first.having("a", "y", DIGEST))
        assert not shared.drop_abandoned()
        assert shared.proposed() is not None
    assert shared.drop_abandoned()
    assert shared.proposed() is None


def test_a_worker_that_starts_goes_by_the_newest_that_others_have() -> None:
    first = Wanted(0, {"a": "x"})
    known = replace(first, digests={"a": DIGEST})
    newer = first.having("a", "y", DIGEST)
    assert recovered(first, []) == first
    assert recovered(first, [Report(None), Report(known)]) == known
    assert recovered(first, [Report(newer), Report(known)]) == newer
    assert recovered(newer, [Report(known)]) == newer


def test_who_leaves_takes_no_lock_that_another_service_holds(tmp_path: Path) -> None:
    ours, other = Shared(tmp_path, {"a": "x"}), Shared(tmp_path, {"b": "y"})
    with other.turn():
        ours.leave()
        with pytest.raises(BlockingIOError), Shared(tmp_path, {"b": "y"}).turn():
            pass
