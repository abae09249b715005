"""What is served is a copy of the bundle: private, read-only, one a machine for all workers.

Weights are mapped from their file, not read. Where the file is changed in place, the answers change
under the same version; where it is cut, the process dies. So the files of a bundle are copied, the
copy is verified, and the copy is served; its pages are in memory once, however many workers map them.

A copy is called by the hash of its manifest, which holds those of all files. It appears whole, by a
rename. Whoever serves it holds a shared lock on its folder; copies that nobody holds are removed when
the next one is made, and by the last one that lets go: its finaliser only puts them down for removal.
What is known of a copy stands beside it: all that lies in it came with the bundle.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import math
import os
import re
import shutil
import tempfile
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xlt_serve import bundle as bundles
from xlt_serve.bundle import MANIFEST, Bundle, Manifest
from xlt_serve.errors import BundleAltered, BundleError
from xlt_serve.serving import private_folder
from xlt_serve.serving.log import Log
from xlt_serve.signing import key_files, signatures
from xlt_serve.signing.key_files import ANYBODY

TRIES = 5
"""A copy that is removed by another process while it is taken is made anew, so many times."""

PATIENCE = 5.0
"""Seconds that a copy is waited for which another process is removing; it may be stopped meanwhile."""

CHUNK = 1 << 24

HALF, GONE = ".half-", ".gone-"
Mark = tuple[int, int, int, int]
Marks = dict[str, Mark | None]
_NAME = re.compile("[0-9a-f]{64}")
_MARK = re.compile(r"([0-9a-f]{64})\.passed-[a-z]+")

_dropped: deque[tuple[int, Path]] = deque()
_ending = threading.Event()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class SealedBundle(Bundle):
    """A verified copy; ``origin`` is the folder that it was made from. ``digest``: of its manifest, so
    of all. ``served``, ``origins``: what the file system said of each file before it was read.
    A ``path`` that is ``origin``: not copied."""

    origin: Path
    digest: str
    served: Marks
    origins: Marks

    @property
    def copied(self) -> bool:
        return self.path != self.origin


def default_folder() -> Path:
    """One for each user of a machine, so that whatever a killed service left is found and removed."""
    return Path(tempfile.gettempdir()) / f"xlt-serve-{os.getuid()}-sealed"


def served(
    place: str, folder: Path, log: Log, digest: str = "", end: float = math.inf
) -> SealedBundle:
    """A sealed bundle; where there is no room for a copy, the bundle where it is, and the log says so.
    Not where a signature is required: who has a file mapped may change it unseen after it was hashed."""
    try:
        return seal(place, folder, digest, end)
    except OSError as error:
        if key_files.required():
            rule = f"can't be copied ({error.strerror or error}), as it must where signatures are required"
            raise BundleError(place, rule, "make room for the copy") from error
        log.write(
            "not_sealed",
            level="warning",
            bundle=place,
            message=f"{error}: it is served where it is, and who cuts its weights ends the workers",
        )
        return unsealed(place)


def seal(
    place: str | Path | None, folder: Path, digest: str = "", end: float = math.inf
) -> SealedBundle:
    """The copy of a bundle below ``folder``, made if it is not there, and held until it is dropped.
    ``digest``: take the copy of this name if there is one, whatever became of its origin. ``end``: of the
    monotonic clock, when copying is given up.

    ``OSError``: there is no room for it, or the folder can't be written.
    """
    private_folder.made(folder)
    remove_dropped()
    clean(folder)
    if digest and (held := _hold(folder / digest)) is not None:
        with contextlib.suppress(BundleError):
            return _taken(folder / digest, held, *_as_found(place, digest))
    for last in (*[False] * (TRIES - 1), True):
        given = bundles.described(place)
        marks = _marks(given)
        copy = folder / bundles.digest(given.file(MANIFEST))
        held = _hold(copy)
        if held is None:
            _copy(given, copy, end)
            held = _hold(copy)
        if held is None:
            continue
        try:
            return _taken(copy, held, given.path, marks)
        except BundleError:
            bundles.load(place)  # the original's own fault is told by its own name
            if last:
                raise
    raise BundleAltered(place, "changes while it is copied", "load it when it is whole")


def _taken(copy: Path, held: int, origin: Path, origins: Marks) -> SealedBundle:
    """The copy that we hold, verified, with the signatures that it has and those that its origin has."""
    try:
        marks, manifest = _verified(copy)
        signatures.carry(origin, copy)
        bundles.read_manifest(copy / MANIFEST, key_files.required())
    except BaseException:
        _let_go(held, copy)
        raise
    sealed = SealedBundle(copy, manifest, origin, copy.name, marks, origins)
    weakref.finalize(sealed, _drop, held, copy)
    return sealed


def _verified(copy: Path) -> tuple[Marks, Manifest]:
    """By its name, which is the hash of its manifest. Only a copy that is damaged is removed: one that we
    can't read just now, or whose signature is not asked for elsewhere, others may serve."""
    try:
        if _digest(copy) != copy.name:
            raise BundleAltered(copy, "is not the bundle that its name says", "load it again")
        marks = _marks(
            bundles.described(copy, ANYBODY)
        )  # before it is read: what changes later is noticed
        return marks, bundles.load(copy, ANYBODY).manifest
    except BundleAltered:
        _remove(copy)
        raise


def _digest(copy: Path) -> str:
    try:
        return bundles.digest(copy / MANIFEST)
    except FileNotFoundError:
        return ""


def _as_found(place: str | Path | None, digest: str) -> tuple[Path, Marks]:
    """The origin of a copy, and its marks; those of an origin that is another by now never fit."""
    try:
        given = bundles.described(place, ANYBODY)
        if bundles.digest(given.file(MANIFEST)) == digest:
            return given.path, _marks(given)
    except (BundleError, OSError):
        pass
    origin = Path(str(place))
    return origin, {str(origin / MANIFEST): (0, 0, 0, 0)}


def unsealed(place: str | Path | None) -> SealedBundle:
    """The bundle where it is, watched but not copied: for want of room. Files that are changed in
    place are noticed. Weights that are cut are not survived: the system ends whoever reads what was
    mapped and is gone (SIGBUS)."""
    marks = _marks(bundles.described(place))
    given = bundles.load(place)
    digest = bundles.digest(given.file(MANIFEST))
    return SealedBundle(given.path, given.manifest, given.path, digest, marks, {})


def intact(bundle: Bundle) -> bool:
    """Whether the files that are served are those that were verified. It reads nothing, and takes some
    microseconds: it is asked for each answer."""
    return not isinstance(bundle, SealedBundle) or all(
        _mark(file) == mark for file, mark in bundle.served.items()
    )


def outdated(bundle: Bundle) -> bool:
    """Whether the origin of a copy is not what was copied any more. New permissions alone change the
    last of the times, and nothing that matters here."""
    return isinstance(bundle, SealedBundle) and any(
        mark is None or (_mark(file) or ())[:3] != mark[:3] for file, mark in bundle.origins.items()
    )


def passed(bundle: Bundle, provider: str) -> Path | None:
    """The file that says that a copy was tried; None where there is no copy: files may change."""
    if not isinstance(bundle, SealedBundle) or not bundle.copied:
        return None
    return bundle.path.with_name(f"{bundle.digest}.passed-{provider}")


def clean(folder: Path) -> None:
    """Remove the copies that nobody holds, and what processes that were killed left half done; nothing
    that has another name than we give."""
    for copy in list(folder.iterdir()):
        with contextlib.suppress(OSError):
            foreign = not private_folder.ours(copy.lstat())  # put there while others could write
            if mark := _MARK.fullmatch(copy.name):
                if foreign or not (folder / mark[1]).exists():
                    copy.unlink()
            elif _NAME.fullmatch(copy.name) and foreign:
                _remove(copy)  # whoever locks it
            elif _left_behind(copy):
                with _locked(copy, fcntl.LOCK_EX):
                    _remove(copy)


def _left_behind(copy: Path) -> bool:
    """If nobody locks it. What is half done may be about to be locked by who makes it."""
    if copy.name.startswith(HALF):
        return time.time() - copy.stat().st_mtime >= 60
    return copy.name.startswith(GONE) or _NAME.fullmatch(copy.name) is not None


def _hold(copy: Path) -> int | None:
    """A shared lock on the folder that has this name now; None: there is none, or it is going."""
    try:
        handle = os.open(copy, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        _wait_for(handle)
        if os.fstat(handle).st_ino == copy.stat().st_ino:
            return handle
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _wait_for(handle: int) -> None:
    """A shared lock, soon; else ``BlockingIOError``."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise
        time.sleep(0.01)


@contextlib.contextmanager
def _locked(folder: Path, kind: int) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
        yield handle
    finally:
        os.close(handle)


def remove_dropped() -> None:
    """The copies that were dropped since, where nobody else holds them. Not for the event loop."""
    with contextlib.suppress(IndexError):
        while True:
            _let_go(*_dropped.popleft())


def _drop(held: int, copy: Path) -> None:
    """By a finaliser, which runs wherever the last one lets go: it may be the event loop."""
    _dropped.append((held, copy))
    if _ending.is_set():  # nobody will come for it
        remove_dropped()


@atexit.register
def _end() -> None:
    """Finalisers may run before it or after it."""
    _ending.set()
    remove_dropped()


def _let_go(held: int, copy: Path) -> None:
    os.close(held)
    with contextlib.suppress(OSError), _locked(copy, fcntl.LOCK_EX):
        _remove(copy)


def _copy(given: Bundle, copy: Path, end: float) -> None:
    """Under a name of its own first, locked so that nobody takes it for left behind."""
    half = Path(tempfile.mkdtemp(prefix=HALF, dir=copy.parent))
    with _locked(half, fcntl.LOCK_SH):
        try:
            for name in (MANIFEST, *given.manifest.files):
                (half / name).parent.mkdir(parents=True, exist_ok=True)
                _copy_file(given.file(name), half / name, end)
            half.rename(copy)
        except (OSError, BundleError) as error:
            _remove(half)
            if isinstance(error, BundleError) or not copy.is_dir():  # else another worker was first
                raise


def _copy_file(source: Path, target: Path, end: float) -> None:
    with source.open("rb") as read, target.open("xb") as written:
        while chunk := read.read(CHUNK):
            if time.monotonic() > end:
                raise BundleError(source, "was not copied in time", "raise XLT_LOAD_TIMEOUT")
            written.write(chunk)
    target.chmod(0o400)


def _remove(copy: Path) -> None:
    """Under another name first: who looks for the copy finds all of it or nothing."""
    gone = copy.with_name(f"{GONE}{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        for mark in copy.parent.glob(f"{copy.name}.passed-*"):
            mark.unlink()
        copy.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _marks(bundle: Bundle) -> Marks:
    files = (str(bundle.file(name)) for name in (MANIFEST, *bundle.manifest.files))
    return {file: _mark(file) for file in files}


def _mark(file: str) -> Mark | None:
    """A write changes its times at once; whoever sets the one back changes the other."""
    try:
        found = os.stat(file)  # noqa: PTH116, a Path takes three times as long
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
