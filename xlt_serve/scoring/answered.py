"""What was answered already: each distinct text once, and no slice twice after a kill.

Answers of the last windows are held, so that a text that comes again costs nothing. In a run that can be
gone on with they also lie in a file for each window, written slice by slice: what a kill costs is a slice
on each core, however long a window takes, and the texts that are known after it are those that would be
known without it. Batches, and with them the last digits, stay those of an uninterrupted run.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from xlt_serve.scoring.journal import ANSWERS, Place, explained

MOST = 1 << 16
"""Texts that are held; windows are forgotten as a whole, the first one first."""
PATIENCE = 3.0
"""Seconds before the first answers go to the disk: a run that fails at once leaves no trace."""

Answer: TypeAlias = dict[str, Any]
"""What a prediction puts into the columns, as JSON has it."""
Spot: TypeAlias = tuple[int, int, int]
"""A window: its unit, its source, and where it ends."""


def key_of(item: object, translation: object = None) -> bytes:
    """The same for the same text; nothing for what is no text, which costs nothing to refuse."""
    parts = item if isinstance(item, tuple) else (item,)
    if not all(isinstance(part, str) for part in parts):
        return b""
    whole = repr((item, translation)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(whole, digest_size=16).digest()


@dataclass(slots=True)
class Texts:
    """The texts that a window was the first to have; an answer is JSON, None while it is under way."""

    spot: Spot
    answers: dict[bytes, bytes | None] = field(default_factory=dict)

    def fill(self, keys: Sequence[bytes], answers: Sequence[Answer]) -> None:
        for key, answer in zip(keys, answers, strict=True):
            if key:
                self.answers[key] = json.dumps(answer).encode()

    def answer(self, key: bytes) -> Answer:
        """To a text of a window that is done."""
        line = self.answers[key]
        assert line is not None
        found: Answer = json.loads(line)
        return found


class AnsweredTexts:
    """``folder``: where answers are kept until their window is written and forgotten; None: nowhere.
    ``claim`` is called before the first of them is written, ``most`` texts are held. ``strict``: one
    error is enough for a failed start, else most of the rows."""

    def __init__(
        self,
        folder: Path | None = None,
        claim: Callable[[], None] = lambda: None,
        most: int = MOST,
        strict: bool = False,
    ) -> None:
        self._folder, self._claim, self._most, self._strict = folder, claim, most, strict
        self._recent: deque[Texts] = deque()
        self._lock = threading.Lock()
        self._waiting: list[tuple[Spot, bytes]] = []
        self._files: dict[Spot, int] = {}
        """How many texts are in the file of a window."""
        self._unsynced: set[Spot] = set()
        self._known: dict[Spot, dict[tuple[int, ...], list[Answer]]] = {}
        self._begins: float | None = None  # 0: everything goes to the disk at once
        self._rows = self._errors = 0

    def known(self, spot: Spot, numbers: Sequence[int]) -> list[Answer] | None:
        """The answers to a slice, if an earlier run gave them."""
        return self._known.get(spot, {}).pop(tuple(numbers), None)

    def find(self, key: bytes) -> Texts | None:
        """A window before that has this text."""
        return next((texts for texts in self._recent if key in texts.answers), None)

    def begin(self, spot: Spot, keys: Iterable[bytes]) -> Texts:
        """A window with texts that were in none before."""
        texts = Texts(spot, dict.fromkeys(key for key in keys if key))
        self._recent.append(texts)
        self._trim()
        with self._lock:
            self._files[spot] = len(texts.answers)
        return texts

    def put(
        self, texts: Texts, numbers: Sequence[int], keys: Sequence[bytes], answers: list[Answer]
    ) -> None:
        """A slice that is done, by any thread."""
        texts.fill(keys, answers)
        if self._folder is None:
            return
        data = json.dumps([list(numbers), [key.hex() for key in keys], answers]).encode()
        entry = b"%08x %s\n" % (zlib.crc32(data), data)
        with self._lock:
            if self._folder is None:
                return
            self._waiting.append((texts.spot, entry))
            self._rows += len(answers)
            self._errors += sum(answer["error"] is not None for answer in answers)
            failing = self._errors > (0 if self._strict else self._rows // 2)
            if self._begins is None:
                self._begins = time.monotonic() + PATIENCE
            if not self._begins or (time.monotonic() >= self._begins and not failing):
                self._flush()

    def settle(self, place: Place) -> None:
        """Before a commit: what the texts known at this place rest on is on the disk."""
        if self._folder is None:
            return
        reached = _spot(place)
        with self._lock:
            self._begins = 0.0
            self._flush()
            for spot in sorted(spot for spot in self._unsynced if spot <= reached):
                _sync(self._file(spot))
                self._unsynced.discard(spot)

    def close(self) -> None:
        """Nothing more is written, whoever is still at work."""
        with self._lock:
            self._folder = None

    def forget(self, place: Place) -> None:
        """After a commit: files of windows whose texts are not held at this place any more."""
        if self._folder is None:
            return
        reached, held = _spot(place), 0
        with self._lock:
            for spot in sorted((s for s in self._files if s <= reached), reverse=True):
                held += self._files[spot]
                if held > self._most:
                    self._file(spot).unlink(missing_ok=True)
                    del self._files[spot]

    def recover(self, place: Place) -> None:
        """What an earlier run knew at this place, and what it had answered beyond."""
        if self._folder is None or not self._folder.is_dir():
            return
        names = (ANSWERS.fullmatch(file.name) for file in self._folder.iterdir())
        spots = sorted((int(n[1]), int(n[2]), int(n[3])) for n in names if n)
        for spot in spots:
            entries = _entries(self._file(spot))
            if spot > _spot(place):
                self._known[spot] = {tuple(numbers): answers for numbers, _, answers in entries}
                self._unsynced.add(spot)
                continue
            texts = Texts(spot)
            rows = [row for entry in entries for row in zip(*entry, strict=True)]
            for _, key, answer in sorted(rows, key=lambda row: row[0]):
                texts.fill([bytes.fromhex(key)], [answer])
            self._files[spot] = len(texts.answers)
            self._recent.append(texts)
        self._trim()

    def _trim(self) -> None:
        held = sum(len(texts.answers) for texts in self._recent)
        while held > self._most:
            held -= len(self._recent.popleft().answers)

    def _flush(self) -> None:
        if not self._waiting:
            return
        assert self._folder is not None
        self._claim()
        with explained(self._folder):
            for spot, entry in self._waiting:
                with self._file(spot).open("ab") as file:
                    file.write(entry)
                self._unsynced.add(spot)
        self._waiting.clear()

    def _file(self, spot: Spot) -> Path:
        assert self._folder is not None
        return self._folder / "answers-{:05}-{:05}-{:015}.jsonl".format(*spot)


def _spot(place: Place) -> Spot:
    return place.unit, place.source, place.position.offset


def _entries(file: Path) -> list[tuple[list[int], list[str], list[Answer]]]:
    """Up to the first line that is not as it was written; what is behind that is cut off."""
    found, good = [], 0
    for line in file.read_bytes().splitlines(keepends=True):
        checksum, _, data = line.removesuffix(b"\n").partition(b" ")
        if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(data):
            break
        found.append(tuple(json.loads(data)))
        good += len(line)
    os.truncate(file, good)
    return found


def _sync(file: Path) -> None:
    with explained(file), file.open("rb") as handle:
        os.fsync(handle.fileno())
