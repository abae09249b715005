"""Is an ONNX graph fit for TensorRT? Answered without a GPU.

A graph that passes is one that TensorRT's parser should take. Whether TensorRT then finds kernels
for it is only known on a GPU: its parser lets no Attention be decomposed, so a fused kernel must
exist for the type and head size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from xlt_serve.errors import XltError, first_line
from xlt_serve.runtime import onnx_file as onnxfile
from xlt_serve.runtime import shapes
from xlt_training.exporting.tensorrt_operators import ALL, CONSTANT, OPERATORS, QUANTISED

OPSETS = (9, 23)  # 23 has Attention, which TensorRT 10.14 is the first to parse
TENSORRT = "TensorRT 10.14"
FP16 = "export with --precision fp16"

_INTEGER = {
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeLinear",
    "ConvInteger",
    "QLinearMatMul",
    "QLinearConv",
}

Values = dict[str, tuple[int, int | None]]
"""name → element type, number of dimensions if known."""


class Broken(NamedTuple):
    """A node that breaks a rule."""

    node: onnx.NodeProto
    rule: str
    remedy: str


def problems(path: Path) -> list[str]:
    """Sentences that name a value, the rule it breaks and the remedy; none: it is fit."""
    try:
        graph = onnx.load(str(path), load_external_data=False)
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # onnx and protobuf share no base class but this
        return [
            _sentence(path.name, f"is no valid ONNX graph ({first_line(error)})", "export again")
        ]
    out = [*_opsets(graph), *_operators(graph), *_named_dimensions(path)]
    try:
        inferred = onnx.shape_inference.infer_shapes(
            graph, check_type=True, strict_mode=True, data_prop=True
        )
    except Exception as error:
        inferred = graph
        rule = f"its shapes can't be inferred strictly ({first_line(error)})"
        out.append(_sentence(path.name, rule, "polygraphy surgeon sanitize --fold-constants"))
    values = _values(inferred.graph)
    broken = [*_operand_types(inferred.graph, values), *_restrictions(inferred.graph, values)]
    out += [*_types(inferred.graph, values), *_collapsed(broken)]
    # An int8 graph is exported anew in another precision: what else is wrong with it goes with that.
    return [sentence for sentence in out if sentence.endswith(FP16)] or out


def fitted(graph: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without what TensorRT's parser refuses and can do without.

    That is ``softmax_precision`` of Attention: TensorRT takes no such attribute, and its fused
    kernels sum in fp32 of their own accord.
    """
    out = onnx.ModelProto()
    out.CopyFrom(graph)
    for node, _ in _nodes(out.graph):
        if node.op_type == "Attention":
            kept = [a for a in node.attribute if a.name != "softmax_precision"]
            del node.attribute[:]
            node.attribute.extend(kept)
    return out


def _opsets(graph: onnx.ModelProto) -> Iterator[str]:
    least, most = OPSETS
    for used in graph.opset_import:
        if used.domain not in ("", "ai.onnx"):
            rule = f"is a domain that {TENSORRT} does not know"
            yield _sentence(used.domain, rule, "export without operators of one runtime's own")
        elif not least <= used.version <= most:
            rule = f"must be from {least} to {most} for {TENSORRT}"
            yield _sentence(f"opset {used.version}", rule, f"export with opset {most}")


def _operators(graph: onnx.ModelProto) -> Iterator[str]:
    count = Counter((n.domain, n.op_type) for n, _ in _nodes(graph.graph))
    for (domain, name), number in sorted(count.items()):
        shown = f"{domain + '.' if domain else ''}{name} ({number}×)"
        if name in _INTEGER:
            yield _sentence(shown, f"{TENSORRT} multiplies no integers", FP16)
        elif domain not in ("", "ai.onnx") or name not in OPERATORS:
            rule = f"is no operator that {TENSORRT} parses"
            yield _sentence(shown, rule, "export without it, or serve with provider cuda")


def _named_dimensions(path: Path) -> Iterator[str]:
    """Profiles are made from names that serving knows."""
    try:
        shapes.names({name: value.dims for name, value in onnxfile.read(path).inputs.items()})
    except XltError as error:
        yield str(error)


def _types(graph: onnx.GraphProto, values: Values) -> Iterator[str]:
    """uint8 may be an input or output; int8 only lie between QuantizeLinear and DequantizeLinear."""
    outside = {value.name for value in (*graph.input, *graph.output)}
    readers: dict[str, set[str]] = {}
    for node, _ in _nodes(graph):
        for name in node.input:
            readers.setdefault(name, set()).add(node.op_type)
    wrong: Counter[int] = Counter()
    for name, (kind, _) in values.items():
        quantised = kind in QUANTISED and readers.get(name, set()) <= {
            "DequantizeLinear",
            "QuantizeLinear",
        }
        if not (kind in ALL or quantised or (kind == TensorProto.UINT8 and name in outside)):
            wrong[kind] += 1
    for kind, number in wrong.items():
        name = TensorProto.DataType.Name(kind).lower()
        eight = kind in (TensorProto.INT8, TensorProto.UINT8)
        remedy = FP16 if eight else "cast it to float, int64 or bool in the graph"
        yield _sentence(f"{name} ({number} values)", f"{TENSORRT} does not compute with it", remedy)


def _operand_types(graph: onnx.GraphProto, values: Values) -> Iterator[Broken]:
    for node, _ in _nodes(graph):
        kind = values.get(node.input[0], (0, None))[0] if node.input else 0
        allowed = OPERATORS.get(node.op_type)
        if allowed and kind in ALL and kind not in allowed:
            name = TensorProto.DataType.Name(kind).lower()
            rule = f"{TENSORRT} takes no {name} in {node.op_type}"
            yield Broken(node, rule, "cast around it in the graph")


def _restrictions(graph: onnx.GraphProto, values: Values) -> Iterator[Broken]:
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    constants = {*tensors, *(n.output[0] for n, _ in _nodes(graph) if n.op_type == "Constant")}
    for node, inner in _nodes(graph):
        place = CONSTANT.get(node.op_type)
        given = node.input[place] if place is not None and len(node.input) > place else ""
        if given and given not in constants:
            rule = f"its axes must be a constant for {TENSORRT}"
            yield Broken(node, rule, "polygraphy surgeon sanitize --fold-constants")
        if node.op_type == "LayerNormalization" and any(node.output[1:]):
            yield Broken(node, f"{TENSORRT} gives its first output only", "export again")
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and len(node.input) > 2:
            zero = tensors.get(node.input[2])
            if zero is None or zero.external_data or np.any(numpy_helper.to_array(zero)):
                yield Broken(node, f"its zero point must be 0 for {TENSORRT}", FP16)
        if node.op_type == "Attention":
            yield from _attention(node, inner, values)


def _attention(node: onnx.NodeProto, inner: bool, values: Values) -> Iterator[Broken]:
    """operators.md, and importAttention and its static check in onnx-tensorrt."""
    given = {
        attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute
    }
    inputs = [*node.input, "", "", "", ""]
    mask = inputs[3]
    kinds = {values.get(name, (0, None))[0] for name in node.input[:3]}
    ranks = {values.get(name, (0, None))[1] for name in [*node.input[:3], *filter(None, [mask])]}
    rules = {
        "it must stand in the main graph, not in a branch or loop": inner,
        "only its first output is supported": any(node.output[1:]),
        "past keys and values are not supported": any(inputs[4:]),
        "softcap must be 0": given.get("softcap", 0) != 0,
        "softmax_precision must not be set": "softmax_precision" in given,
        "it must be causal or have a mask, not both": bool(given.get("is_causal") and mask),
        "queries, keys, values and mask must have 4 dimensions": ranks != {4},
        "queries, keys and values must have one type": len(kinds) != 1,
        "its mask must be bool or of the type of its queries": bool(mask)
        and values.get(mask, (0, None))[0] not in {TensorProto.BOOL, *kinds},
    }
    for rule, broken in rules.items():
        remedy = "export with --tensorrt" if "precision" in rule else "serve with provider cuda"
        if broken:
            yield Broken(node, f"{rule} in {TENSORRT}", remedy)


def _nodes(graph: onnx.GraphProto, inner: bool = False) -> Iterator[tuple[onnx.NodeProto, bool]]:
    """Every node, and whether it stands in a branch or loop."""
    for node in graph.node:
        yield node, inner
        for attribute in node.attribute:
            for sub in (attribute.g, *attribute.graphs):
                yield from _nodes(sub, True)


def _values(graph: onnx.GraphProto) -> Values:
    out: Values = {
        tensor.name: (tensor.data_type, len(tensor.dims)) for tensor in graph.initializer
    }
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor = value.type.tensor_type
        rank = len(tensor.shape.dim) if tensor.HasField("shape") else None
        out[value.name] = (tensor.elem_type, rank)
    return out


def _sentence(value: object, rule: str, remedy: str) -> str:
    return str(XltError(value, rule, remedy))


def _collapsed(broken: Iterable[Broken]) -> Iterator[str]:
    """One sentence for all nodes of a kind that break the same rule."""
    nodes: dict[tuple[str, str, str], list[str]] = {}
    for node, rule, remedy in broken:
        key = (node.op_type, rule, remedy)
        nodes.setdefault(key, []).append(node.name or node.output[0])
    for (kind, rule, remedy), found in nodes.items():
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield _sentence(f"{kind} {found[0]}{more}", rule, remedy)
