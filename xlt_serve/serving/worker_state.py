"""What the workers of one service agree on: which bundles are to be loaded, and who has them.

A folder of small files. ``bundles.json`` is what was agreed. ``proposal.json`` is what a swap would
make of it: each worker gets ready for it and says so in a file of its own. Then one rename makes the
proposal the agreement. That is the commit; without it nothing has changed. One swap at a time (a lock).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from xlt_serve.serving import private_folder

LARGEST = 1_000_000
"""Bytes of a file here; a larger one is none of ours."""


class Corrupt(OSError):
    """A file of the state that no worker wrote so."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """``generation`` counts the swaps; ``bundles``: name → place; ``changed``: name → the swap that it
    came by; ``digests``: name → sha256 of its manifest, where it is known; ``attempt``: which try."""

    generation: int
    bundles: dict[str, str]
    changed: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    attempt: str = ""

    def having(self, name: str, place: str, digest: str) -> Wanted:
        """The next generation, with this bundle under this name."""
        return Wanted(
            self.generation + 1,
            self.bundles | {name: place},
            self.changed | {name: self.generation + 1},
            self.digests | {name: digest},
            uuid.uuid4().hex,
        )

    def lacking(self, name: str) -> Wanted:
        """The next generation, without this name."""

        def left(values: dict[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in values.items() if key != name}

        return Wanted(
            self.generation + 1,
            left(self.bundles),
            left(self.changed),
            left(self.digests),
            uuid.uuid4().hex,
        )


@dataclass(frozen=True, slots=True)
class Notice:
    """What an operator should know of; the message names no path of this machine."""

    code: str
    message: str
    bundle: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says of itself: what it goes by (None: it starts), which attempt it is ready for,
    or why it can't be. ``reached``: the generation that none of its answers is older than."""

    state: Wanted | None = None
    ready: str = ""
    error: str = ""
    notices: tuple[Notice, ...] = ()
    reached: int = -1


class Shared:
    """Every method may raise ``OSError``: a folder that can't be read or written, a corrupt file."""

    def __init__(
        self,
        folder: Path,
        bundles: dict[str, str],
        on_killed: Callable[[int], None] = lambda process: None,
        process: int | None = None,
    ) -> None:
        self.process = os.getpid() if process is None else process
        self.folder, self.first = folder, Wanted(0, bundles)
        self._on_killed = on_killed
        self._agreed, self._proposal = folder / "bundles.json", folder / "proposal.json"
        self._mine = folder / f"worker-{self.process}.json"

    def committed(self) -> Wanted:
        """What is to be loaded; also by a worker that starts after a swap."""
        return self._wanted(self._agreed) or self.first

    def proposed(self) -> Wanted | None:
        return self._wanted(self._proposal)

    def _wanted(self, file: Path) -> Wanted | None:
        """None where there is none, or one of a service that was started with other bundles."""
        private_folder.check(self.folder)
        raw = _read(file)
        if raw is None or _typed(raw, dict).get("configured") != self.first.bundles:
            return None
        return _as_wanted(raw)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """One swap at a time, over all workers; ``BlockingIOError`` while there is another."""
        private_folder.made(self.folder)
        lock = self.folder / "lock"
        with lock.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not lock.exists() or os.fstat(handle.fileno()).st_ino != lock.stat().st_ino:
                raise BlockingIOError(f"{lock} was removed by who left last")
            yield

    def propose(self, wanted: Wanted) -> None:
        self._write(self._proposal, asdict(wanted) | {"configured": self.first.bundles})

    def commit(self) -> None:
        self._proposal.replace(self._agreed)

    def abort(self) -> None:
        self._proposal.unlink(missing_ok=True)

    def drop_abandoned(self) -> bool:
        """Of a swap whose worker was killed the proposal is left, while nobody has the lock."""
        with contextlib.suppress(BlockingIOError), self.turn():
            self.abort()
            return True
        return False

    def report(self, report: Report) -> None:
        told = asdict(report) | {"since": began(self.process)}
        self._write(self._mine, told | {"configured": self.first.bundles})

    def still_reported(self) -> bool:
        """Whether nobody took the report away; so that what cleans up old files leaves it there."""
        try:
            os.utime(self._mine)
        except FileNotFoundError:
            return False
        return True

    def leave(self) -> None:
        """The last one to go takes the folder along, unless a swap is noted there: a worker that is
        started anew must find it."""
        self._mine.unlink(missing_ok=True)
        if not self._agreed.exists() and not self.workers():
            with contextlib.suppress(OSError):  # not ours alone after all
                with self.turn():  # of another service's swap the lock must stay
                    (self.folder / "lock").unlink()
                self.folder.rmdir()

    def workers(self) -> dict[int, Report]:
        """What each living worker of this service says, by process id. Of one whose words can't be
        read: that it has said nothing yet."""
        private_folder.check(self.folder)
        out: dict[int, Report] = {}
        for file in self.folder.glob("worker-*.json"):
            number = file.stem.removeprefix("worker-")
            if not number.isdecimal():
                continue
            try:
                raw = _typed(_read(file) or {}, dict)
                since = str(raw.get("since"))
                ours = raw.get("configured", self.first.bundles) == self.first.bundles
                report = _as_report(raw) if ours else None
            except Corrupt:
                since, report = None, Report()
            if not _lives(int(number), since):
                with contextlib.suppress(OSError):
                    file.unlink(missing_ok=True)  # killed: it could not say that it left
                self._on_killed(int(number))
            elif report is not None:
                out[int(number)] = report
        return out

    def _write(self, file: Path, value: dict[str, Any]) -> None:
        """Whole or not at all. Each file has one writer at a time, so that what a failed one leaves
        has one name, and goes."""
        private_folder.made(self.folder)
        half = file.with_suffix(".half")
        try:
            with half.open("w", encoding="utf-8") as handle:
                json.dump(value, handle, allow_nan=False)
                handle.flush()
                os.fsync(handle.fileno())
            half.replace(file)
        except OSError:
            half.unlink(missing_ok=True)
            raise


def recovered(told: Wanted, peers: list[Report]) -> Wanted:
    """What a worker that starts goes by: what was agreed, or what the others have if that is newer or
    says more, namely which copies they hold."""
    known = [told, *(peer.state for peer in peers if peer.state is not None)]
    return max(known, key=lambda wanted: (wanted.generation, len(wanted.digests)))


def default_folder() -> Path:
    """One for each service: workers have the same parent, and no other process has its start."""
    parent = os.getppid()
    name = f"xlt-serve-{os.getuid()}-{parent}-{began(parent)}"
    return Path(tempfile.gettempdir()) / name


def began(process: int) -> str:
    """When a process was started, as no other with its number was. On Linux counted from the boot: the
    time of day moves whenever the clock is set, and workers that are there would seem to be gone."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
        told = Path(f"/proc/{process}/stat").read_bytes()  # number (name) state parent …
        return f"{boot}-{int(told.rpartition(b')')[2].split()[19])}"
    except (OSError, ValueError, IndexError):  # no Linux, or the process is gone, which this tells
        return str(int(psutil.Process(process).create_time()))


def _lives(process: int, since: str | None) -> bool:
    """A process that began at another time than the worker is another one: numbers come back, after a
    container's restart all of them."""
    try:
        found = psutil.Process(process)
        if found.status() == psutil.STATUS_ZOMBIE:
            return False
        return since is None or began(process) == since
    except (psutil.Error, OverflowError):
        return False


def _read(file: Path) -> Any:
    """JSON, or None where there is no file. Whatever else lies there neither blocks nor fills us."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as opened:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise Corrupt(f"{file} is no file")
        if not private_folder.ours(found):
            raise Corrupt(f"{file} belongs to somebody else")
        content = opened.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise Corrupt(f"{file} has over {LARGEST} bytes")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{file} is not JSON ({type(error).__name__})") from None


def _as_wanted(raw: dict[str, Any]) -> Wanted:
    bundles = _mapped(raw.get("bundles"), str)
    wanted = Wanted(
        _counted(raw.get("generation")),
        bundles,
        _mapped(raw.get("changed", {}), int),
        _mapped(raw.get("digests", {}), str),
        _typed(raw.get("attempt", ""), str),
    )
    if not bundles or {*wanted.changed, *wanted.digests} - {*bundles}:
        raise Corrupt("the state names no bundles, or others than it has")
    if any(not 0 <= number <= wanted.generation for number in wanted.changed.values()):
        raise Corrupt("the state has a bundle of a generation that is to come")
    return replace(wanted, digests={n: d for n, d in wanted.digests.items() if _is_digest(d)})


def _is_digest(text: str) -> bool:
    """It becomes the name of a folder."""
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _as_report(raw: dict[str, Any]) -> Report:
    state = raw.get("state")
    said = (_mapped(one, str) for one in _typed(raw.get("notices", []), list))
    try:
        notices = tuple(Notice(**one) for one in said)
    except TypeError:
        raise Corrupt("a worker says what no worker says") from None
    return Report(
        None if state is None else _as_wanted(_typed(state, dict)),
        _typed(raw.get("ready", ""), str),
        _typed(raw.get("error", ""), str),
        notices,
        _typed(raw.get("reached", -1), int),
    )


def _typed(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Corrupt(f"{type(value).__name__} where the state has another type")
    return value


def _counted(value: Any) -> int:
    number: int = _typed(value, int)
    if number < 0:
        raise Corrupt(f"{number} where the state has a count")
    return number


def _mapped(value: Any, kind: type) -> Any:
    return {name: _typed(one, kind) for name, one in _typed(value, dict).items()}
