"""An operator that onnxruntime-gpu for CUDA 12 has no kernel for, in operators that it has.

Its versions up to 1.26 compare whole numbers on the CPU, in the opset of our graphs: the ids would go
there and back in each run. Drivers before 580 run no later version.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

WHOLE = {TensorProto.INT64, TensorProto.INT32}


def without_equal(graph: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph, in which ``a = b`` of whole numbers is ``not (a - b)``, which is exact."""
    types = {value.name: value.type.tensor_type.elem_type for value in graph.graph.value_info}
    types |= {value.name: value.type.tensor_type.elem_type for value in graph.graph.input}
    types |= {tensor.name: tensor.data_type for tensor in graph.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.graph.node:
        if node.op_type != "Equal" or not WHOLE & {types.get(name, 0) for name in node.input}:
            nodes.append(node)
            continue
        name, out = node.name, node.output[0]
        difference, differs = f"{out}/difference", f"{out}/differs"
        nodes += [
            helper.make_node("Sub", node.input, [difference], f"{name}/Sub"),
            helper.make_node("Cast", [difference], [differs], f"{name}/Cast", to=TensorProto.BOOL),
            helper.make_node("Not", [differs], [out], f"{name}/Not"),
        ]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    return graph
