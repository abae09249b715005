"""The teacher's vectors, computed when a text is first drawn and then kept on disk.

A run draws a part of a few million texts; encoding them all beforehand would take as long as a good
part of the training. The store goes by the text itself, so that other pools use it too.
"""

from __future__ import annotations

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
            opened.append(teacher.Teacher(teacher.fetch(folder)))
        return opened[0].encode(texts)

    return encode


class TargetStore:
    """texts → [n, 512] float16; two files that only grow: the texts' hashes, and their vectors."""

    def __init__(self, folder: Path, encode: Encode) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.hashes, self.vectors = folder / "hashes.u64", folder / "vectors.f16"
        self.encode = encode
        self.hashes.touch()
        self.vectors.touch()
        # Vectors are written first: a stop between the two leaves some that nothing points to.
        known = np.fromfile(self.hashes, dtype=np.uint64)
        if self.vectors.stat().st_size > len(known) * _ROW:
            with self.vectors.open("r+b") as handle:
                handle.truncate(len(known) * _ROW)
        self.place = {int(value): row for row, value in enumerate(known)}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        keys = [_key(text) for text in texts]
        missing = {
            key: text for key, text in zip(keys, texts, strict=True) if key not in self.place
        }
        if missing:
            self._append(list(missing), self.encode(list(missing.values())))
        stored = np.memmap(self.vectors, np.float16, "r").reshape(-1, teacher.WIDTH)
        return np.asarray(stored[[self.place[key] for key in keys]])

    def _append(self, keys: list[int], vectors: np.ndarray) -> None:
        with self.vectors.open("ab") as handle:
            handle.write(vectors.astype(np.float16).tobytes())
        with self.hashes.open("ab") as handle:
            handle.write(np.array(keys, dtype=np.uint64).tobytes())
        first = len(self.place)
        self.place.update((key, first + i) for i, key in enumerate(keys))


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
