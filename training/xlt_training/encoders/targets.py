"""The teacher's vectors, computed when a text is first drawn and then kept on disk.

A run draws a part of a few million texts; encoding them all beforehand would take as long as a good
part of the training. The store goes by the text itself, so that other pools use it too.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from xlt_training.encoders import teacher

Encode = Callable[[Sequence[str]], np.ndarray]
_ROW = 2 * teacher.WIDTH  # bytes of a vector, float16


def teacher_in(folder: Path) -> Encode:
    """The teacher, opened when it is first asked."""
    opened: list[teacher.Teacher] = []

    def encode(texts: Sequence[str]) -> np.ndarray:
        if not opened:
            opened.append(teacher.Teacher(teacher.fetch(folder), threads=1))
        return opened[0].encode(texts)

    return encode


class TargetStore:
    """texts → [n, 512] float16; two files that only grow: the texts' hashes, and their vectors."""

    def __init__(self, folder: Path, encode: Encode) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.hashes, self.vectors = folder / "hashes.u64", folder / "vectors.f16"
        self.encode = encode
        self.place: dict[int, int] = {}
        self.seen = 0
        self.hashes.touch()
        self.vectors.touch()

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        keys = [_key(text) for text in texts]
        self._read()
        missing = {
            key: text for key, text in zip(keys, texts, strict=True) if key not in self.place
        }
        if missing:
            self._append(list(missing), self.encode(list(missing.values())))
            self._read()
        stored = np.memmap(self.vectors, np.float16, "r").reshape(-1, teacher.WIDTH)
        return np.asarray(stored[[self.place[key] for key in keys]])

    def _read(self) -> None:
        """The hashes that were added since, here or by another process; a repeated one changes
        nothing."""
        more = np.fromfile(self.hashes, np.uint64, offset=8 * self.seen)
        for row, key in enumerate(more, start=self.seen):
            self.place.setdefault(int(key), row)
        self.seen += len(more)

    def _append(self, keys: list[int], vectors: np.ndarray) -> None:
        with self.hashes.open("ab") as hashes, self.vectors.open("r+b") as stored:
            fcntl.flock(hashes, fcntl.LOCK_EX)
            # A stop between the two writes leaves vectors that no hash points to: they are overwritten.
            stored.seek(self.hashes.stat().st_size // 8 * _ROW)
            stored.write(vectors.astype(np.float16).tobytes())
            stored.flush()
            hashes.write(np.array(keys, dtype=np.uint64).tobytes())


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
