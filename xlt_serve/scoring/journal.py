"""Exactly once: what is in the output is what the journal says, and nothing else.

Bytes go to a data file, are brought to the disk, and only then a line in the journal says that they
are there and up to where in the input. After a kill, bytes that no line speaks of are cut off, and
reading goes on at the position of the last line. A line that was cut off itself does not count, nor
do bytes whose checksum is not the line's.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from xlt_serve import bundle as bundles
from xlt_serve.errors import DataError, UsageError
from xlt_serve.files.window import BEGIN, Position
from xlt_serve.scoring.counts import Counts

EVERY = 1.0
"""Seconds between two commits: a kill costs that much work more, a commit waits for the disk."""

RUN = "run.json"
"""The order that a folder of work belongs to."""
FILES = re.compile(
    r"(lock|(run|pipe|receipt)\.json|journal\.jsonl|final|unit-\d+\.data|previous\.sqlite)(\.half)?"
    r"|unit-\d+\.half|answers-\d+-\d+-\d+\.jsonl"
)
ANSWERS = re.compile(r"answers-(\d+)-(\d+)-(\d+)\.jsonl")
"""Of a window: its unit, its source, and where it ends (``answered``)."""
UNIT = re.compile(r"unit-(\d+)\.data")
FOLDERS = ("final", "parts")
"""All that a run keeps in its folder; ``final`` is a file or a folder, as the output is."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to go on: number of the unit, of its source, and the position there. ``digest``: of what
    was read of a pipe up to there."""

    unit: int = 0
    source: int = 0
    position: Position = BEGIN
    digest: str = ""


@dataclass(slots=True)
class Recovered:
    place: Place = field(default_factory=Place)
    counts: Counts = field(default_factory=Counts)
    finished: bool = False


class Journal:
    """The folder of a run that is not finished yet. Use it as a context: it is locked meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "journal.jsonl"
        self._data: IO[bytes] | None = None
        self._unit = -1
        self._fresh = 0  # bytes since the last commit
        self._crc = 0
        self._counts = Counts()
        self._at = 0.0
        self._order: dict[str, Any] | None = None  # what the folder is to be claimed for
        self._claiming = threading.Lock()
        self.before: Callable[[Place], None] = lambda place: None
        self.after: Callable[[Place], None] = lambda place: None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """A second run on the same output would write between our lines. Folders that were made for
        nothing go again."""
        import fcntl

        lock = self.folder / "lock"
        with explained(self.folder):
            made = [f for f in (self.folder, *self.folder.parents) if not f.exists()]
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = lock.open("a")
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The run that held it may have ended, and taken it along, since we opened it.
                if not os.path.samestat(os.fstat(handle.fileno()), lock.stat()):
                    raise FileNotFoundError
            except OSError:
                raise UsageError(
                    self.folder, "is being written by another run", "wait for it, or end it"
                ) from None
            try:
                yield
            finally:
                self._close()
                if not (self.folder / RUN).exists():
                    lock.unlink(missing_ok=True)
                    with contextlib.suppress(OSError):  # not empty
                        for folder in made:
                            folder.rmdir()

    def order(self) -> dict[str, Any] | None:
        """What the folder was claimed for; None where it was not, or by nobody that we know."""
        try:
            found = json.loads((self.folder / RUN).read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.keys() >= {"format", "bundle"} else None

    def is_empty(self) -> bool:
        """No row was answered, by this machine or by others: there is nothing to go on with."""
        committed = self._log.exists() and self._log.stat().st_size > 0
        answered = any(self.folder.glob("answers-*.jsonl"))
        return not (committed or answered) and not any((self.folder / "parts").glob("*.json"))

    @property
    def is_new(self) -> bool:
        """Begun, and not claimed yet: what is in the folder is another order's."""
        return self._order is not None

    def begin(self, order: dict[str, Any]) -> None:
        """Anew, but not before there is something to write: a run that fails before its first rows
        leaves the folder as it was."""
        self._order = order

    def claim(self) -> None:
        """What another order left goes, and the folder is ours."""
        with self._claiming:  # the first slice that is answered claims it too
            if self._order is not None:
                self.clear()
                write_whole(self.folder / RUN, json.dumps(self._order, indent=1).encode())
                self._order = None

    def note(self, name: str, data: bytes) -> None:
        """A small file beside the rows."""
        self.claim()
        write_whole(self.folder / name, data)

    def data(self, unit: int) -> Path:
        return self.folder / f"unit-{unit:05}.data"

    def clear(self) -> None:
        """What is not ours stays, and is not looked at. What says that it is ours goes last."""
        for old in sorted(self.folder.iterdir(), key=lambda file: file.name == RUN):
            if old.name in FOLDERS and old.is_dir():
                shutil.rmtree(old)
            elif old.name != "lock" and FILES.fullmatch(old.name):
                old.unlink()

    def remove(self) -> None:
        self.clear()
        (self.folder / "lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty: someone else's file is in it
            self.folder.rmdir()

    def dismiss(self, is_done: Callable[[dict[str, Any]], bool]) -> None:
        """What a run left that was killed when its output was whole already."""
        if not self.folder.is_dir():
            return
        left = self.order()
        if (left is not None and is_done(left)) or all(map(_unclaimed, self.folder.iterdir())):
            # The output is there, whatever becomes of this.
            with contextlib.suppress(UsageError, DataError), self.locked():
                self.remove()

    def recover(self) -> Recovered:
        """Where the last run stood. What it wrote beyond that is cut off."""
        out = Recovered()
        good = 0
        held: dict[int, int] = {}
        if self._log.exists():
            with self._log.open("rb") as log, contextlib.ExitStack() as stack:
                handles: dict[int, IO[bytes]] = {}
                for line in log:
                    entry = _entry(line)
                    if entry is None:
                        break
                    unit = entry["unit"]
                    if unit not in handles:
                        if not self.data(unit).exists():
                            break
                        handles[unit] = stack.enter_context(self.data(unit).open("rb"))
                    if _crc(handles[unit], entry["bytes"]) != entry["crc"]:
                        break
                    good += len(line)
                    held[unit] = held.get(unit, 0) + entry["bytes"]
                    position = Position(entry["offset"], entry["line"])
                    out.place = Place(unit, entry["source"], position, entry["digest"])
                    out.counts.add(Counts.of(entry["counts"]))
                    out.finished = entry["end"]
            os.truncate(self._log, good)
        for file in list(self.folder.iterdir()):
            if not (named := UNIT.fullmatch(file.name)):
                continue
            unit = int(named[1])
            if unit in held:  # of an empty input it may be empty
                os.truncate(file, held[unit])
            else:
                file.unlink()
        return out

    def counts(self, units: int) -> list[Counts]:
        """Of each unit, by what was committed."""
        out = [Counts() for _ in range(units)]
        if self._log.exists():
            for line in self._log.read_bytes().splitlines(keepends=True):
                if entry := _entry(line):
                    out[entry["unit"]].add(Counts.of(entry["counts"]))
        return out

    def append(self, unit: int, data: bytes, place: Place, counts: Counts) -> None:
        """Bytes of the output up to ``place``; they count once they are committed. ``before`` and
        ``after`` a commit are told its place."""
        with explained(self.folder):
            if unit != self._unit:
                self._close()
                self._data = self.data(unit).open("ab")
                self._unit = unit
            assert self._data is not None
            self._data.write(data)
            self._fresh += len(data)
            self._crc = zlib.crc32(data, self._crc)
            self._counts.add(counts)
            if time.monotonic() - self._at >= EVERY:
                self.commit(place)

    def commit(self, place: Place, end: bool = False) -> None:
        """``end``: the unit is complete with this."""
        assert self._data is not None
        self.before(place)
        with explained(self.folder):
            self._data.flush()
            os.fsync(self._data.fileno())
            entry = {
                "unit": place.unit,
                "source": place.source,
                **asdict(place.position),
                "digest": place.digest,
                "bytes": self._fresh,
                "crc": self._crc,
                "counts": self._counts.to_dict(),
                "end": end,
            }
            with self._log.open("ab") as log:
                log.write(json.dumps(entry).encode() + b"\n")
                log.flush()
                os.fsync(log.fileno())
        self._fresh, self._crc, self._counts, self._at = 0, 0, Counts(), time.monotonic()
        self.after(place)

    def refuse_foreign(self) -> None:
        """A folder that no run of ours claimed may hold anything, but nothing by a name of ours: it
        would be cleared away or written over."""
        if self.folder.is_file():
            raise UsageError(self.folder, "is a file, and the work needs a folder", "move it away")
        if not self.folder.is_dir() or self.order() is not None:
            return
        for file in sorted(self.folder.iterdir()):
            ours = file.name in FOLDERS or FILES.fullmatch(file.name)
            if ours and not _unclaimed(file):
                raise UsageError(
                    file, "is there already and of no run of ours", "move it away, or give --work"
                )

    def _close(self) -> None:
        if self._data is not None:
            # What is not committed will be cut off anyway: a disk that is full must not hide
            # the error that we are closing for.
            with contextlib.suppress(OSError):
                self._data.close()
            self._data = None
            self._unit = -1


@contextlib.contextmanager
def explained(place: Path) -> Iterator[None]:
    """What a disk may say while we write to it, in our words."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(
                place,
                f"can't be written to ({error.strerror})",
                "make room and give the same command again; what was scored is kept",
            ) from None
        if isinstance(error, PermissionError | NotADirectoryError | FileNotFoundError):
            raise UsageError(
                place, f"can't be written to ({error.strerror})", "choose another place for OUT"
            ) from None
        raise


def write_whole(file: Path, data: bytes) -> None:
    """All or nothing under the final name."""
    with explained(file):
        bundles.write_whole(file, data)


def _unclaimed(file: Path) -> bool:
    """What a run leaves that is killed before it claims its folder, or when all the rest is gone."""
    return file.name == f"{RUN}.half" or (file.name == "lock" and not file.stat().st_size)


def _entry(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _crc(handle: IO[bytes], size: int) -> int | None:
    """Of the next ``size`` bytes; None where they are not all there."""
    crc = 0
    while size:
        block = handle.read(min(size, 1 << 20))
        if not block:
            return None
        crc = zlib.crc32(block, crc)
        size -= len(block)
    return crc
