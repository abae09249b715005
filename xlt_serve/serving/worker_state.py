"""What the workers of one service agree on: which bundles are to be loaded, and who has them.

A folder of small files: ``bundles.json`` says what is wanted, each worker writes which generation it
has. Writing is whole or not at all (rename), and one at a time (a lock).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from xlt_serve.errors import UsageError

SAME = 5.0
"""Seconds within which two starts are one: they are told by the wall clock, which may be set."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """``generation`` counts the swaps; ``bundles``: name → place; ``changed``: what each swap was."""

    generation: int
    bundles: dict[str, str]
    changed: dict[str, int]


class Shared:
    def __init__(
        self,
        folder: Path,
        bundles: dict[str, str],
        on_killed: Callable[[int], None] = lambda process: None,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise UsageError(
                folder, "belongs to somebody else", "set XLT_STATE to a folder of yours"
            )
        self.folder, self._first = folder, Wanted(0, bundles, {})
        self._on_killed = on_killed
        self._file = folder / "bundles.json"
        self._mine = folder / f"worker-{os.getpid()}.json"

    def wanted(self) -> Wanted:
        """What is to be loaded; also by a worker that starts after a swap."""
        try:
            raw = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return self._first
        if raw.get("configured") != self._first.bundles:
            return self._first  # of a service that was started with other bundles
        return Wanted(raw["generation"], raw["bundles"], raw["changed"])

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """One swap at a time, over all workers; ``BlockingIOError`` while there is another."""
        with (self.folder / "lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    def want(self, name: str, place: str) -> int:
        """Ask all workers for this bundle under this name; the generation that has it."""
        old = self.wanted()
        generation = old.generation + 1
        self._write(
            self._file,
            {
                "generation": generation,
                "bundles": old.bundles | {name: place},
                "changed": old.changed | {name: generation},
                "configured": self._first.bundles,
            },
        )
        return generation

    def report(self, generation: int, error: str = "") -> None:
        since = psutil.Process().create_time()
        self._write(self._mine, {"generation": generation, "error": error, "since": since})

    def leave(self) -> None:
        """The last one to go takes the folder along, unless a swap is noted there: a worker that is
        started anew must find it."""
        self._mine.unlink(missing_ok=True)
        if not self._file.exists() and not self.workers():
            (self.folder / "lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not ours alone after all
                self.folder.rmdir()

    def workers(self) -> dict[int, dict[str, Any]]:
        """What each living worker has, by process id. A process that began at another time than the
        worker is none: numbers come back, after a container's restart all of them."""
        out: dict[int, dict[str, Any]] = {}
        for file in self.folder.glob("worker-*.json"):
            pid = int(file.stem.removeprefix("worker-"))
            try:
                told = json.loads(file.read_text(encoding="utf-8"))
                if abs(psutil.Process(pid).create_time() - told.get("since", 0)) > SAME:
                    raise psutil.NoSuchProcess(pid)
                out[pid] = told
            except (psutil.NoSuchProcess, FileNotFoundError):
                file.unlink(missing_ok=True)  # killed: it could not say that it left
                self._on_killed(pid)
        return out

    def _write(self, file: Path, value: dict[str, Any]) -> None:
        with tempfile.NamedTemporaryFile(
            "w", dir=self.folder, prefix=".new-", delete=False, encoding="utf-8"
        ) as handle:
            json.dump(value, handle)
        Path(handle.name).replace(file)


def default_folder() -> Path:
    """One for each service: workers have the same parent, and no other process has its start."""
    parent = psutil.Process(os.getppid())
    name = f"xlt-serve-{os.getuid()}-{parent.pid}-{int(parent.create_time())}"
    return Path(tempfile.gettempdir()) / name
