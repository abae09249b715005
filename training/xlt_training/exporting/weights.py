"""Several graphs over one weights file: a tensor that occurs in all of them is written once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import onnx

WEIGHTS = "weights.bin"
ALIGNMENT = 64  # so that a runtime may map the file and use the tensors where they lie
SMALLEST = 256  # bytes; below it a tensor stays inside its graph


def save(graphs: Mapping[str, onnx.ModelProto], folder: Path) -> None:
    """``NAME.onnx`` for each graph, and ``weights.bin`` with all their larger tensors.

    Tensors are told apart by content, not by name: what exporters call them does not matter.
    """
    places: dict[str, tuple[int, int]] = {}
    with (folder / WEIGHTS).open("wb") as file:
        for name, graph in graphs.items():
            out = onnx.ModelProto()
            out.CopyFrom(graph)
            for tensor in out.graph.initializer:
                content = tensor.raw_data
                if len(content) < SMALLEST:
                    continue
                key = hashlib.sha256(content).hexdigest()
                if key not in places:
                    file.write(b"\0" * (-file.tell() % ALIGNMENT))
                    places[key] = (file.tell(), len(content))
                    file.write(content)
                _refer(tensor, *places[key])
            (folder / f"{name}.onnx").write_bytes(out.SerializeToString(deterministic=True))


def _refer(tensor: onnx.TensorProto, offset: int, length: int) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", WEIGHTS), ("offset", offset), ("length", length)):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
