"""int8 weights for onnxruntime, with activation scales per token.

A scale per tensor would make a text's answer depend on its neighbours in the batch; here every
row (token) has its own, so it does not. Weights have a scale per output channel, embedding tables
one per row and block of 64: a few dimensions are much larger than the rest, and a scale for the
whole row would round the others coarsely (1.2 % of the table's norm against .8 %).
"""

from __future__ import annotations

import re

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from xlt_training.exporting import attention_heads as heads

BLOCK = 64
RUNTIME = "com.microsoft"  # onnxruntime's domain: int8 graphs run there and nowhere else


def int8(graph: onnx.ModelProto, exclude: str = "", smallest: int = 4096) -> onnx.ModelProto:
    """A copy whose large MatMul weights and embedding tables are int8; the rest stays fp32, and so do
    nodes whose name ``exclude`` matches."""
    out = onnx.ModelProto()
    out.CopyFrom(graph)
    # What onnxruntime alone will run may be in its fastest form.
    heads.merge(out)
    heads.first_query(out)
    fold_transposed_weights(out)
    weights = {tensor.name: tensor for tensor in out.graph.initializer}
    replaced: dict[str, list[onnx.TensorProto]] = {}
    rows: dict[str, _Row] = {}
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, onnx.TensorProto] = {}
    for node in out.graph.node:
        weight = weights.get(node.input[1]) if node.op_type == "MatMul" else None
        table = weights.get(node.input[0]) if node.op_type == "Gather" else None
        if exclude and re.search(exclude, node.name):
            nodes.append(node)
        elif _fits(weight, smallest):
            assert weight is not None
            replaced.setdefault(weight.name, _by_channel(weight))
            nodes += _quantised_matmul(node, weight, rows, constants)
        elif _fits(table, smallest) and _axis(node) == 0:
            assert table is not None
            replaced.setdefault(table.name, _by_row(table))
            nodes += _dequantised_gather(node, table, constants)
        else:
            nodes.append(node)
    _refuse_other_uses(nodes, replaced)
    kept = [t for t in out.graph.initializer if t.name not in replaced]
    new = [tensor for tensors in replaced.values() for tensor in tensors]
    del out.graph.node[:], out.graph.initializer[:], out.graph.value_info[:]
    out.graph.node.extend(nodes)
    out.graph.initializer.extend([*kept, *new, *constants.values()])
    if rows:
        out.opset_import.append(helper.make_opsetid(RUNTIME, 1))
    return out


def fold_transposed_weights(graph: onnx.ModelProto) -> None:
    """Transpose(weight) becomes a weight: the exporter leaves large ones that two streams read."""
    weights = {tensor.name: tensor for tensor in graph.graph.initializer}
    folded: dict[str, str] = {}
    kept = []
    for node in graph.graph.node:
        weight = weights.get(node.input[0]) if node.op_type == "Transpose" else None
        if weight is None or len(weight.dims) != 2:
            kept.append(node)
            continue
        name = f"{weight.name}/transposed"
        if name not in folded.values():
            values = np.ascontiguousarray(numpy_helper.to_array(weight).T)
            graph.graph.initializer.append(numpy_helper.from_array(values, name))
        folded[node.output[0]] = name
    for node in kept:
        for place, given in enumerate(node.input):
            if given in folded:
                node.input[place] = folded[given]
    del graph.graph.node[:]
    graph.graph.node.extend(kept)
    read = {name for node in kept for name in node.input}
    left = [tensor for tensor in graph.graph.initializer if tensor.name in read]
    del graph.graph.initializer[:]
    graph.graph.initializer.extend(left)


class _Row:
    """The quantised form of one activation, shared by all products that read it.

    It is flattened to [tokens, width]: QuantizeLinear takes a scale for each index of one axis.
    """

    def __init__(self, name: str) -> None:
        self.quantised, self.scale, self.sizes = f"{name}/int8", f"{name}/scale", f"{name}/sizes"


def _quantised_rows(source: str, row: _Row, width: int) -> list[onnx.NodeProto]:
    def named(part: str) -> str:
        return f"{source}/{part}"

    return [
        helper.make_node("Shape", [source], [row.sizes], end=-1),
        helper.make_node("Reshape", [source, f"xlt/rows_of_{width}"], [named("rows")]),
        # Two reductions read the activation; Abs and one would also write it.
        helper.make_node("ReduceMax", [named("rows"), "xlt/axis"], [named("most")], keepdims=0),
        helper.make_node("ReduceMin", [named("rows"), "xlt/axis"], [named("least")], keepdims=0),
        helper.make_node("Neg", [named("least")], [named("depth")]),
        helper.make_node("Max", [named("most"), named("depth"), "xlt/tiny"], [named("peak")]),
        helper.make_node("Div", [named("peak"), "xlt/127"], [named("step")]),
        helper.make_node("Shape", [named("step")], [named("count")]),
        helper.make_node(
            "ConstantOfShape",
            [named("count")],
            [named("zero")],
            # Unsigned with zero point 128: the form that x86 multiplies fast.
            value=numpy_helper.from_array(np.array([128], dtype=np.uint8)),
        ),
        helper.make_node(
            "QuantizeLinear", [named("rows"), named("step"), named("zero")], [row.quantised], axis=0
        ),
        helper.make_node("Unsqueeze", [named("step"), "xlt/axis"], [row.scale]),
    ]


def _quantised_matmul(
    node: onnx.NodeProto,
    weight: onnx.TensorProto,
    rows: dict[str, _Row],
    constants: dict[str, onnx.TensorProto],
) -> list[onnx.NodeProto]:
    source, result = node.input[0], node.output[0]
    width, channels = weight.dims
    for tensor in (
        numpy_helper.from_array(np.array([1], dtype=np.int64), "xlt/axis"),
        numpy_helper.from_array(np.array([-1, width], dtype=np.int64), f"xlt/rows_of_{width}"),
        numpy_helper.from_array(np.array([channels], dtype=np.int64), f"xlt/channels_{channels}"),
        numpy_helper.from_array(np.array(127, dtype=np.float32), "xlt/127"),
        numpy_helper.from_array(np.array(1e-12, dtype=np.float32), "xlt/tiny"),
        numpy_helper.from_array(np.array(1, dtype=np.float32), "xlt/one"),
        numpy_helper.from_array(np.array(128, dtype=np.uint8), "xlt/128"),
    ):
        constants[tensor.name] = tensor
    out: list[onnx.NodeProto] = []
    if source not in rows:
        rows[source] = _Row(source)
        out += _quantised_rows(source, rows[source], width)
    row = rows[source]
    name = weight.name
    return [
        *out,
        # onnxruntime's own operator: the product leaves it as floats, scaled by channel.
        helper.make_node(
            "MatMulIntegerToFloat",
            [row.quantised, f"{name}/int8", "xlt/one", f"{name}/scale", "xlt/128"],
            [f"{result}/channels"],
            domain=RUNTIME,
        ),
        helper.make_node("Mul", [f"{result}/channels", row.scale], [f"{result}/rows"]),
        helper.make_node(
            "Concat", [row.sizes, f"xlt/channels_{channels}"], [f"{result}/sizes"], axis=0
        ),
        helper.make_node("Reshape", [f"{result}/rows", f"{result}/sizes"], [result]),
    ]


def _dequantised_gather(
    node: onnx.NodeProto, table: onnx.TensorProto, constants: dict[str, onnx.TensorProto]
) -> list[onnx.NodeProto]:
    name, indices, result = table.name, node.input[1], node.output[0]
    width = numpy_helper.from_array(
        np.array(table.dims[1:], np.int64), f"xlt/width_{table.dims[1]}"
    )
    constants[width.name] = width
    return [
        helper.make_node("Gather", [f"{name}/int8", indices], [f"{result}/int8"], axis=0),
        helper.make_node("Gather", [f"{name}/scale", indices], [f"{result}/scale"], axis=0),
        helper.make_node("Cast", [f"{result}/int8"], [f"{result}/float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{result}/float", f"{result}/scale"], [f"{result}/blocks"]),
        helper.make_node("Shape", [indices], [f"{result}/indices"]),
        helper.make_node("Concat", [f"{result}/indices", width.name], [f"{result}/sizes"], axis=0),
        helper.make_node("Reshape", [f"{result}/blocks", f"{result}/sizes"], [result]),
    ]


SEVEN_BITS = 63
"""The largest weight of a product. x86 without VNNI adds two products of a byte and a weight in 16 bits:
with 127 they overflow, and the answers depend on the processor; 2 × 255 × 63 fits."""


def _by_channel(weight: onnx.TensorProto) -> list[onnx.TensorProto]:
    values, scale = rounded(numpy_helper.to_array(weight), axis=0, most=SEVEN_BITS)
    return [
        numpy_helper.from_array(values, f"{weight.name}/int8"),
        numpy_helper.from_array(scale[0], f"{weight.name}/scale"),
    ]


def _by_row(table: onnx.TensorProto) -> list[onnx.TensorProto]:
    rows, width = table.dims
    blocks = width // BLOCK if width % BLOCK == 0 else 1
    values, scale = rounded(numpy_helper.to_array(table).reshape(rows, blocks, -1), axis=2)
    return [
        numpy_helper.from_array(values, f"{table.name}/int8"),
        numpy_helper.from_array(scale, f"{table.name}/scale"),
    ]


def rounded(values: np.ndarray, axis: int, most: int = 127) -> tuple[np.ndarray, np.ndarray]:
    """int8 values up to ``most`` and the scale along ``axis`` (kept) with values ≈ int8 × scale."""
    scale = np.maximum(np.abs(values).max(axis=axis, keepdims=True), 1e-12) / most
    return np.round(values / scale).astype(np.int8), scale.astype(np.float32)


def _fits(tensor: onnx.TensorProto | None, smallest: int) -> bool:
    return (
        tensor is not None
        and tensor.data_type == TensorProto.FLOAT
        and len(tensor.dims) == 2
        and int(np.prod(tensor.dims)) >= smallest
    )


def _axis(node: onnx.NodeProto) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)


def _refuse_other_uses(
    nodes: list[onnx.NodeProto], replaced: dict[str, list[onnx.TensorProto]]
) -> None:
    for node in nodes:
        if lost := set(node.input) & set(replaced):
            raise ValueError(f"{node.op_type} {node.name} also reads {lost}, which became int8")
