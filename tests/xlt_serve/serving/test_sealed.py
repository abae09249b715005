"""Weights that change under a service: its answers stay what they were, and it can say so."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.xlt_serve.serving.conftest import Start, copied
from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.classifier import Classifier
from xlt_serve.errors import BundleAltered, BundleError, BundleNotFound
from xlt_serve.serving import sealed
from xlt_serve.serving.log import Log
from xlt_serve.serving.sealed import intact, outdated, seal
from xlt_serve.signing import key_files, signatures

Sign = Callable[[str, Path], None]
TEXT = "Die Mannschaft gewann das Finale."


@pytest.fixture(autouse=True)
def _(own_drops: None) -> None:
    """In all of these."""


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    return copied(tmp_path / "origin", "a copy to hurt")


def zeroed(file: Path) -> None:
    size = file.stat().st_size
    with file.open("r+b") as handle:  # in place: whoever mapped it sees it
        handle.write(bytes(size))


def cut(file: Path) -> None:
    os.truncate(file, 4096)


def copies(folder: Path) -> list[str]:
    return [found.name for found in folder.iterdir()]


@pytest.mark.parametrize("hurt", [zeroed, cut, Path.unlink])
def test_what_is_served_outlives_its_origin(origin: Path, tmp_path: Path, hurt: object) -> None:
    classifier = Classifier(seal(origin, tmp_path / "sealed"))
    (before,) = classifier.predict([TEXT])
    assert not outdated(classifier.bundle)
    hurt(origin / "weights.bin")  # type: ignore[operator]
    assert [p.probabilities for p in classifier.predict([TEXT])] == [before.probabilities]
    for graph in ("plain", "perturbed"):  # also one that is opened now
        classifier.runners.of(graph)
    assert intact(classifier.bundle)
    assert outdated(classifier.bundle)
    with pytest.raises(BundleAltered, match=f"^{origin}"):
        seal(origin, tmp_path / "other")


def test_a_service_serves_the_copy(origin: Path, start: Start) -> None:
    service = start(bundles={"hurt": str(origin)})
    before = service.post("/classify", json={"texts": [TEXT]}).json()
    cut(origin / "weights.bin")
    again = service.post("/classify", json={"texts": [TEXT]})
    assert again.status_code == 200
    assert again.json()["predictions"] == before["predictions"]


def test_a_copy_that_is_altered_is_not_intact(origin: Path, tmp_path: Path) -> None:
    bundle = seal(origin, tmp_path / "sealed")
    weights = bundle.file("weights.bin")
    found = weights.stat()
    assert found.st_mode & 0o777 == 0o400
    assert intact(bundle)
    weights.chmod(0o600)
    zeroed(weights)
    os.utime(weights, ns=(found.st_atime_ns, found.st_mtime_ns))  # whoever covers it up
    assert not intact(bundle)
    assert not outdated(bundle)


def test_new_permissions_of_the_origin_are_no_alteration(origin: Path, tmp_path: Path) -> None:
    bundle = seal(origin, tmp_path / "sealed")
    (origin / "weights.bin").chmod(0o640)
    assert intact(bundle)
    assert not outdated(bundle)


def test_a_copy_that_others_hold_is_taken_whatever_became_of_its_origin(
    origin: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "sealed"
    first = seal(origin, folder)
    same = seal(origin, folder, first.digest)
    assert (same.path, same.origins) == (first.path, first.origins)
    shutil.rmtree(origin)
    second = seal(origin, folder, first.digest)
    assert (second.path, second.manifest) == (first.path, first.manifest)
    assert outdated(second)
    assert intact(second)
    with pytest.raises(BundleNotFound):
        seal(origin, folder, "0" * 64)


def test_workers_share_one_copy_until_the_last_lets_go(origin: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sealed"
    found: list[sealed.SealedBundle] = []
    threads = [threading.Thread(target=lambda: found.append(seal(origin, folder))) for _ in "1234"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {bundle.path for bundle in found} == {folder / copies(folder)[0]}
    assert len(copies(folder)) == 1
    while found:
        sealed.remove_dropped()
        assert len(copies(folder)) == 1
        found.pop()
    sealed.remove_dropped()
    assert copies(folder) == []


def test_who_lets_go_last_does_not_remove_the_copy_itself(origin: Path, tmp_path: Path) -> None:
    """It may be the event loop."""
    bundle = seal(origin, tmp_path / "sealed")
    copy = bundle.path
    del bundle
    assert (copy / "weights.bin").exists()
    sealed.remove_dropped()
    assert copies(tmp_path / "sealed") == []


@pytest.mark.parametrize("dropped", ["", "del held"])
def test_nothing_is_left_when_the_process_ends(origin: Path, tmp_path: Path, dropped: str) -> None:
    folder = tmp_path / "sealed"
    code = "import sys; from pathlib import Path\n"
    code += "import weakref; weakref.finalize(print, int)\n"  # the first one says when all run
    code += "from xlt_serve.serving.sealed import seal\n"
    code += f"held = seal(sys.argv[1], Path(sys.argv[2])); {dropped}\n"
    code += "assert list(Path(sys.argv[2]).iterdir())"
    subprocess.run([sys.executable, "-c", code, str(origin), str(folder)], timeout=60, check=True)
    assert copies(folder) == []


def test_what_a_killed_worker_left_is_removed(origin: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sealed"
    code = "import os, sys; from xlt_serve.serving.sealed import seal; from pathlib import Path\n"
    code += "held = seal(sys.argv[1], Path(sys.argv[2])); os._exit(9)"
    subprocess.run([sys.executable, "-c", code, str(origin), str(folder)], timeout=60, check=False)
    [left] = copies(folder)
    (folder / ".half-old").mkdir()
    os.utime(folder / ".half-old", (0, 0))
    held = seal("topics", folder)
    assert copies(folder) == [held.path.name] != [left]


def test_a_damaged_copy_is_made_anew(origin: Path, tmp_path: Path) -> None:
    first = seal(origin, tmp_path / "sealed")
    first.file("weights.bin").chmod(0o600)
    cut(first.file("weights.bin"))
    second = seal(origin, tmp_path / "sealed")
    assert bundles.load(second.path)
    assert intact(second)
    assert not intact(first)


def test_without_room_the_bundle_is_served_where_it_is(origin: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    written = io.StringIO()
    log = Log(written)
    bundle = sealed.served(str(origin), tmp_path / "file" / "sealed", log)
    assert log.flush(10)
    assert bundle.path == origin
    assert "not_sealed" in written.getvalue()
    assert "who cuts its weights ends the workers" in written.getvalue()
    assert not bundle.copied
    assert intact(bundle)
    zeroed(origin / "weights.bin")
    assert not intact(bundle)


@pytest.fixture
def signer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sign:
    """Sign a bundle by a new key of this name, and ask for its signature from here on."""

    def sign(name: str, where: Path) -> None:
        file = tmp_path / f"{name}.pem"
        public = key_files.write_new(file)[0]
        monkeypatch.setenv(key_files.REQUIRED, str(public))
        manifest = (where / bundles.MANIFEST).read_bytes()
        signatures.add(where, signatures.sign(manifest, key_files.read_private(file)))

    return sign


def test_a_copy_that_others_serve_outlives_a_signature_that_it_lacks(
    origin: Path, tmp_path: Path, signer: Sign, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sealed"
    first = seal(origin, folder)
    signer("one", copied(tmp_path / "other", "signed by another"))
    with pytest.raises(BundleError, match="is not signed"):
        seal(origin, folder, first.digest)
    assert intact(first)
    signer("two", origin)
    second = seal(origin, folder, first.digest)  # whose copy was made before it was signed
    assert second.path == first.path
    signer("three", origin)  # a key that replaces it
    assert seal(origin, folder, first.digest).path == first.path
    monkeypatch.setenv(key_files.REQUIRED, str(tmp_path / "two.pub"))
    (origin / signatures.SIGNATURE).unlink()
    assert seal(origin, folder, first.digest).path == first.path  # kept beside the newer one
    assert intact(first)


def test_a_copy_that_can_not_be_read_is_not_removed(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = seal(origin, tmp_path / "sealed")
    with monkeypatch.context() as patched:
        failing = BundleError("weights.bin", "can't be read (Input/output error)")

        def fails(*call: object) -> Bundle:
            raise failing

        patched.setattr(bundles, "load", fails)
        with pytest.raises(BundleError, match="Input/output"):
            seal(origin, tmp_path / "sealed", first.digest)
    assert intact(first)


def test_a_copy_is_what_its_name_says(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the origin had become another bundle between its hash and its copy."""
    other = copied(tmp_path / "other", "another bundle")
    copy, done = sealed._copy, list[Path]()

    def late(given: Bundle, target: Path, end: float) -> None:
        copy(given if done else bundles.described(other), target, end)
        done.append(target)

    monkeypatch.setattr(sealed, "_copy", late)
    bundle = seal(origin, tmp_path / "sealed")
    assert len(done) == 2
    assert bundles.digest(bundle.file("bundle.json")) == bundle.digest == bundle.path.name


def test_a_copy_takes_no_longer_than_it_may(origin: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="was not copied in time"):
        seal(origin, tmp_path / "sealed", end=time.monotonic())
    assert copies(tmp_path / "sealed") == []


def test_where_signatures_are_required_nothing_is_served_without_a_copy(
    origin: Path, tmp_path: Path, signer: Sign
) -> None:
    signer("one", origin)
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match=r"can't be copied .* where signatures are required"):
        sealed.served(str(origin), tmp_path / "file" / "sealed", Log(io.StringIO()))


def test_every_file_is_watched_also_what_is_read_late(origin: Path, tmp_path: Path) -> None:
    (origin / "synonyms.json").write_text("{}")
    bundles.save(origin, bundles.described("topics").manifest)
    for bundle in (seal(origin, tmp_path / "sealed"), sealed.unsealed(origin)):
        assert intact(bundle)
        bundle.file("synonyms.json").chmod(0o600)
        zeroed(bundle.file("synonyms.json"))
        assert not intact(bundle)


def _open_below(folder: Path) -> list[str]:
    """What this process has open there; the count of all its files changes with other tests' threads."""
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(handle.readlink()))
    return [file for file in found if file.startswith(str(folder))]


def test_nobody_waits_for_ever_for_who_is_stopped_while_it_removes_a_copy(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed, "PATIENCE", 0.2)
    folder = tmp_path / "sealed"
    copy = folder / bundles.digest(origin / "bundle.json")
    copy.mkdir(parents=True)
    written, found = io.StringIO(), list[sealed.SealedBundle]()
    with sealed._locked(copy, fcntl.LOCK_EX):
        call = (str(origin), folder, Log(written))
        thread = threading.Thread(target=lambda: found.append(sealed.served(*call)), daemon=True)
        thread.start()
        thread.join(20)
        assert [bundle.copied for bundle in found] == [False]
    assert not _open_below(folder)


def test_a_folder_of_ours_is_closed_to_others(origin: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sealed"
    folder.mkdir()
    for mode in (0o777, 0o770, 0o702):
        folder.chmod(mode)
        seal(origin, folder)
        assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o750)  # who may read it does no harm
    seal(origin, folder)
    assert folder.stat().st_mode & 0o777 == 0o750


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_what_others_put_into_a_folder_of_ours_is_not_believed(
    origin: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "sealed"
    folder.mkdir(mode=0o777)
    digest = bundles.digest(origin / "bundle.json")
    mark = folder / f"{digest}.passed-cpu"
    shutil.copytree(origin, folder / digest)
    mark.touch()
    for planted in (folder / digest, mark):
        os.chown(planted, 12345, 12345)
    with sealed._locked(folder / digest, fcntl.LOCK_SH):  # held by its owner
        bundle = seal(origin, folder)
    assert bundle.copied
    assert bundle.path.stat().st_uid == os.getuid()
    assert not mark.exists()


def test_a_bundle_that_nobody_sealed_is_not_watched() -> None:
    assert intact(bundles.described())
    assert not outdated(bundles.described())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("what", ["folder", "link"])
def test_what_another_user_planted_is_not_used(origin: Path, tmp_path: Path, what: str) -> None:
    precious = tmp_path / "precious"
    (precious / ("a" * 64)).mkdir(parents=True)
    folder = tmp_path / "sealed"
    if what == "link":
        folder.symlink_to(precious)
    else:
        folder.mkdir()
    os.chown(folder, 12345, 12345, follow_symlinks=False)
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        seal(origin, folder)
    assert (precious / ("a" * 64)).is_dir()
    assert not list(folder.glob(".half-*"))


def test_nothing_is_cleaned_up_that_we_did_not_name(origin: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sealed"
    (folder / "somebody's").mkdir(parents=True)
    (folder / "file").touch()
    (folder / ".gone-of-a-killed-one").mkdir()
    held = seal(origin, folder)
    assert sorted(copies(folder)) == sorted([held.path.name, "file", "somebody's"])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("options", ["size=1m", "size=200m,noexec", "size=200m,ro"])
def test_a_small_a_noexec_and_a_read_only_file_system(
    origin: Path, tmp_path: Path, options: str
) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(mount)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("no mounts here")
    try:
        classifier = Classifier(sealed.served(str(origin), mount / "sealed", Log(io.StringIO())))
        assert classifier.bundle.copied == ("noexec" in options)  # type: ignore[attr-defined]
        assert classifier.predict([TEXT])[0].label == "sports"
        if not classifier.bundle.copied and "ro" not in options:  # type: ignore[attr-defined]
            assert copies(mount / "sealed") == []  # what was copied by then is gone
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)
