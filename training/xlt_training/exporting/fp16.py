"""fp16 in the graph itself, for GPUs: TensorRT ignores or lacks a switch for it.

LayerNorm (a mean of squares over the width) and the softmax of attention overflow or lose digits
in fp16, so they stay in fp32; inputs and outputs are what they were.
"""

from __future__ import annotations

import re

import onnx
from onnx import TensorProto, helper
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16
from onnxruntime.transformers.onnx_model import OnnxModel

# Operators that keep fp32: sums of squares and exponentials.
KEPT = ("LayerNormalization", "Softmax", "ReduceMean", "ReduceSum", "Pow", "Exp", "Erf", "Log")
SOFTMAX_PRECISION = "softmax_precision"


def fp16(graph: onnx.ModelProto, exclude: str = "") -> onnx.ModelProto:
    """A copy with fp16 weights and products, but for nodes whose name ``exclude`` matches."""
    out = onnx.ModelProto()
    out.CopyFrom(graph)
    for node in out.graph.node:
        if node.op_type == "Attention" and not any(
            attribute.name == SOFTMAX_PRECISION for attribute in node.attribute
        ):
            node.attribute.append(helper.make_attribute(SOFTMAX_PRECISION, TensorProto.FLOAT))
    # The exporter's own value_info names float32 for what becomes float16: let it be inferred.
    del out.graph.value_info[:]
    converted = OnnxModel(
        convert_float_to_float16(
            out,
            keep_io_types=True,
            op_block_list=[*DEFAULT_OP_BLOCK_LIST, *KEPT],
            node_block_list=[
                n.name for n in out.graph.node if exclude and re.search(exclude, n.name)
            ],
        )
    )
    drop_repeated_casts(converted.model)
    converted.topological_sort()  # the casts stand at the end, after their readers
    sorted_model: onnx.ModelProto = converted.model
    return sorted_model


def drop_repeated_casts(graph: onnx.ModelProto) -> None:
    """The converter writes a cast once for each reader, all with the same output."""
    seen: set[str] = set()
    kept = []
    for node in graph.graph.node:
        if node.op_type == "Cast" and node.output[0] in seen:
            continue
        seen.update(node.output)
        kept.append(node)
    del graph.graph.node[:]
    graph.graph.node.extend(kept)
