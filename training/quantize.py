"""int8 weights in plain ONNX operators, with activation scales per token.

A scale per tensor would make a text's answer depend on its neighbours in the batch; here every
row (token) has its own, so it does not. Weights have a scale per output channel, embedding tables
one per row.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def int8(graph: onnx.ModelProto, exclude: str = "", smallest: int = 4096) -> onnx.ModelProto:
    """A copy whose large MatMul weights and embedding tables are int8; the rest stays fp32, and so do
    nodes whose name ``exclude`` matches."""
    out = onnx.ModelProto()
    out.CopyFrom(graph)
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
            nodes += _quantised_matmul(node, weight.name, rows, constants)
        elif _fits(table, smallest) and _axis(node) == 0:
            assert table is not None
            replaced.setdefault(table.name, _by_row(table))
            nodes += _dequantised_gather(node, table.name)
        else:
            nodes.append(node)
    _refuse_other_uses(nodes, replaced)
    kept = [t for t in out.graph.initializer if t.name not in replaced]
    new = [tensor for tensors in replaced.values() for tensor in tensors]
    del out.graph.node[:], out.graph.initializer[:], out.graph.value_info[:]
    out.graph.node.extend(nodes)
    out.graph.initializer.extend([*kept, *new, *constants.values()])
    return out


class _Row:
    """The quantised form of one activation, shared by all products that read it."""

    def __init__(self, name: str) -> None:
        self.quantised, self.scale = f"{name}/int8", f"{name}/scale"


def _quantised_matmul(
    node: onnx.NodeProto,
    weight: str,
    rows: dict[str, _Row],
    constants: dict[str, onnx.TensorProto],
) -> list[onnx.NodeProto]:
    source, result = node.input[0], node.output[0]
    out: list[onnx.NodeProto] = []
    if source not in rows:
        rows[source] = _Row(source)
        row = rows[source]
        constants.update(
            (tensor.name, tensor)
            for tensor in (
                numpy_helper.from_array(np.array([-1], dtype=np.int64), "xlt/last_axis"),
                numpy_helper.from_array(np.float32(127), "xlt/127"),
                numpy_helper.from_array(np.float32(1e-12), "xlt/tiny"),
                numpy_helper.from_array(np.float32(1), "xlt/one"),
                # Unsigned with zero point 128: the form that x86 multiplies fast.
                numpy_helper.from_array(np.uint8(128), "xlt/128"),
            )
        )
        out += [
            helper.make_node("Abs", [source], [f"{source}/abs"]),
            helper.make_node(
                "ReduceMax", [f"{source}/abs", "xlt/last_axis"], [f"{source}/peak"], keepdims=1
            ),
            helper.make_node("Max", [f"{source}/peak", "xlt/tiny"], [f"{source}/positive"]),
            helper.make_node("Div", [f"{source}/positive", "xlt/127"], [row.scale]),
            helper.make_node("Div", [source, row.scale], [f"{source}/scaled"]),
            helper.make_node(
                "QuantizeLinear", [f"{source}/scaled", "xlt/one", "xlt/128"], [row.quantised]
            ),
        ]
    row = rows[source]
    out += [
        helper.make_node(
            "MatMulInteger", [row.quantised, f"{weight}/int8", "xlt/128"], [f"{result}/int32"]
        ),
        helper.make_node("Cast", [f"{result}/int32"], [f"{result}/float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{result}/float", f"{weight}/scale"], [f"{result}/channels"]),
        helper.make_node("Mul", [f"{result}/channels", row.scale], [result]),
    ]
    return out


def _dequantised_gather(node: onnx.NodeProto, table: str) -> list[onnx.NodeProto]:
    indices, result = node.input[1], node.output[0]
    return [
        helper.make_node("Gather", [f"{table}/int8", indices], [f"{result}/int8"], axis=0),
        helper.make_node("Gather", [f"{table}/scale", indices], [f"{result}/scale"], axis=0),
        helper.make_node("Cast", [f"{result}/int8"], [f"{result}/float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{result}/float", f"{result}/scale"], [result]),
    ]


def _by_channel(weight: onnx.TensorProto) -> list[onnx.TensorProto]:
    values, scale = rounded(numpy_helper.to_array(weight), axis=0)
    return [
        numpy_helper.from_array(values, f"{weight.name}/int8"),
        numpy_helper.from_array(scale[0], f"{weight.name}/scale"),
    ]


def _by_row(table: onnx.TensorProto) -> list[onnx.TensorProto]:
    values, scale = rounded(numpy_helper.to_array(table), axis=1)
    return [
        numpy_helper.from_array(values, f"{table.name}/int8"),
        numpy_helper.from_array(scale, f"{table.name}/scale"),
    ]


def rounded(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """int8 values and the scale along ``axis`` (kept) with values ≈ int8 × scale."""
    scale = np.maximum(np.abs(values).max(axis=axis, keepdims=True), 1e-12) / 127
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
