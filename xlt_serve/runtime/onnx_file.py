"""What an ONNX file says of itself, read without the onnx package: inputs, outputs, weight types.

Serving does not install onnx, and onnxruntime shows a graph's inputs only after it has opened it,
which for TensorRT takes minutes and needs the shapes first. The few fields wanted here are easy to
read from the wire format (https://protobuf.dev/programming-guides/encoding, onnx.proto).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xlt_serve.errors import BundleError

Dim = int | str
"""A size, or its name: ``batch``, ``length``, ``length + 5``; ``?`` if the file gives neither."""

# TensorProto.DataType
_FLOAT16 = 10
_WHOLE = {2, 3, 21, 22}  # uint8, int8, uint4, int4


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output: its ONNX element type and its dimensions."""

    type: int
    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """``matrices``: element types of the weights with two dimensions or more."""

    inputs: dict[str, Value]
    outputs: dict[str, Value]
    matrices: frozenset[int]

    @property
    def precision(self) -> str:
        if self.matrices & _WHOLE:
            return "int8"
        return "fp16" if _FLOAT16 in self.matrices else "fp32"


def read(file: Path) -> OnnxFile:
    try:
        graph = next(_bytes(file.read_bytes(), 7))
        weights = [_tensor(found) for found in _bytes(graph, 5)]
        matrices = frozenset(kind for kind, rank in weights if rank >= 2)
        named = {_text(found, 1) for found in _bytes(graph, 5)}
        return OnnxFile(
            {_text(v, 1): _value(v) for v in _bytes(graph, 11) if _text(v, 1) not in named},
            {_text(v, 1): _value(v) for v in _bytes(graph, 12)},
            matrices,
        )
    except (StopIteration, IndexError, UnicodeDecodeError, ValueError):
        raise BundleError(file, "is no ONNX graph", "export the bundle again") from None


def _bytes(message: bytes, field: int) -> Iterator[bytes]:
    """Every length-delimited value of a field, in order."""
    return (value for number, value in _fields(message) if number == field and type(value) is bytes)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
        elif kind in (1, 2, 5):
            length = {1: 8, 5: 4}.get(kind, 0)
            if kind == 2:
                length, place = _varint(message, place)
            if place + length > len(message):
                raise ValueError("cut short")
            yield key >> 3, message[place : place + length]
            place += length
        else:
            raise ValueError(f"wire type {kind}")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _text(message: bytes, field: int) -> str:
    return next(_bytes(message, field), b"").decode()


def _number(message: bytes, field: int) -> int:
    return next((v for n, v in _fields(message) if n == field and isinstance(v, int)), 0)


def _tensor(message: bytes) -> tuple[int, int]:
    """Element type and number of dimensions of a TensorProto, whose dims may be packed or not."""
    kind = rank = 0
    for number, value in _fields(message):
        if number == 1:
            rank += 1 if isinstance(value, int) else sum(byte < 0x80 for byte in value)
        elif number == 2 and isinstance(value, int):
            kind = value
    return kind, rank


def _value(message: bytes) -> Value:
    """ValueInfoProto.type (2) → tensor_type (1) → elem_type (1), shape (2) → dim (1)."""
    tensor = next(_bytes(next(_bytes(message, 2)), 1))
    shape = next(_bytes(tensor, 2), b"")
    dims = tuple(_text(dim, 2) or _number(dim, 1) or "?" for dim in _bytes(shape, 1))
    return Value(_number(tensor, 1), dims)
