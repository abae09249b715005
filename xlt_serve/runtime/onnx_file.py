"""What an ONNX file says of itself, read without the onnx package: inputs, outputs, weight types,
nodes, and the files beside it that it reads.

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

DEEPEST = 100
"""Messages in one another that protobuf reads; more only cost time."""

# TensorProto.DataType
_FLOAT, _FLOAT16 = 1, 10
_WHOLE = {2, 3, 21, 22}  # uint8, int8, uint4, int4
_PLACES = {6, 7, 9}  # int32, int64, bool: positions and masks, which are no weights

MIXED = "mixed"
"""The precision of a graph of which nothing is known: no margin was measured for its rounding."""

# Where tensors may stand, in a file of any depth: message → field → message.
_PARTS = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_OPERATOR, _EXTERNAL = 4, 13  # NodeProto.op_type, TensorProto.external_data


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output: its ONNX element type and its dimensions."""

    type: int
    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class ExternalData:
    """Bytes of another file that a tensor is made of; ``end`` None: as many as the tensor needs."""

    location: str
    start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the main graph; its name may be empty."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """``matrices``: element types of the weights with two dimensions or more; ``external``: what it
    reads of other files; ``operators``: all that its nodes are called, also those of branches."""

    inputs: dict[str, Value]
    outputs: dict[str, Value]
    matrices: frozenset[int]
    external: frozenset[ExternalData]
    operators: frozenset[str]
    nodes: tuple[Node, ...] = ()
    constants: frozenset[str] = frozenset()

    @property
    def precision(self) -> str:
        """What export makes, in which some layers may stay fp32; else ``MIXED``."""
        coarse = self.matrices - _PLACES - {_FLOAT}
        if not coarse:
            return "fp32"
        if coarse <= _WHOLE:
            return "int8"
        return "fp16" if coarse == {_FLOAT16} else MIXED


def read(file: Path) -> OnnxFile:
    try:
        content = file.read_bytes()
        [graph] = _bytes(content, 7)  # of several, protobuf would make one
        external, operators = _contents(content)
        weights = [_tensor(found) for found in _bytes(graph, 5)]
        matrices = frozenset(kind for kind, rank in weights if rank >= 2)
        named = {_text(found, 8) for found in _bytes(graph, 5)}
        return OnnxFile(
            {_text(v, 1): _value(v) for v in _bytes(graph, 11) if _text(v, 1) not in named},
            {_text(v, 1): _value(v) for v in _bytes(graph, 12)},
            matrices,
            external,
            operators,
            tuple(_node(found) for found in _bytes(graph, 1)),
            frozenset(named),
        )
    except (StopIteration, IndexError, ValueError):
        raise BundleError(file, "is no ONNX graph", "export the bundle again") from None


def _contents(content: bytes) -> tuple[frozenset[ExternalData], frozenset[str]]:
    """Whatever any tensor of the file reads elsewhere, and every operator: also of subgraphs."""
    external, operators = set(), set()
    ahead = [("model", content, 0)]
    while ahead:
        kind, message, depth = ahead.pop()
        if depth > DEEPEST:
            raise ValueError("too deep")
        parts = _PARTS[kind]
        entries = []
        for number, value in _fields(message):
            if type(value) is not bytes:
                continue
            if number in parts:
                ahead.append((parts[number], value, depth + 1))
            elif kind == "node" and number == _OPERATOR:
                operators.add(value.decode())
            elif kind == "tensor" and number == _EXTERNAL:
                entries.append((_text(value, 1), _text(value, 2)))
        if entries:
            external.add(_external(entries))
    return frozenset(external), frozenset(operators)


def _external(entries: list[tuple[str, str]]) -> ExternalData:
    given = dict(entries)
    if len(given) < len(entries) or not given.get("location"):
        raise ValueError("external data in no one place")
    start, length = given.get("offset", "0"), given.get("length", "")
    if not _digits(start) or not (length == "" or _digits(length)):
        raise ValueError("external data at no place")
    end = int(start) + int(length) if length else None
    return ExternalData(given["location"], int(start), end)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def _bytes(message: bytes, field: int) -> Iterator[bytes]:
    """Every length-delimited value of a field, in order."""
    return (value for number, value in _fields(message) if number == field and type(value) is bytes)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        if key >= 1 << 32:  # protobuf would read another field
            raise ValueError("no field")
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
        if shift >= 70:
            raise ValueError("no number")


def _text(message: bytes, field: int) -> str:
    return next(_bytes(message, field), b"").decode()


def _number(message: bytes, field: int) -> int:
    return next((v for n, v in _fields(message) if n == field and isinstance(v, int)), 0)


def _node(message: bytes) -> Node:
    inputs, outputs = ([value.decode() for value in _bytes(message, n)] for n in (1, 2))
    return Node(_text(message, 3), _text(message, _OPERATOR), tuple(inputs), tuple(outputs))


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
