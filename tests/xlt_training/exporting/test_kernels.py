from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from xlt_training.exporting.kernels import without_equal

CASES = [(0, 0), (1, 0), (-1, 1), (2**62, -(2**62)), (7, 7), (2**63 - 1, -1), (-(2**63), 2**63 - 1)]


def made(kind: int) -> onnx.ModelProto:
    """Whether each of some numbers is the constant 7, and whether two inputs are equal."""
    inputs = [helper.make_tensor_value_info(name, kind, ["n"]) for name in ("x", "y")]
    outputs = [helper.make_tensor_value_info(n, TensorProto.BOOL, ["n"]) for n in ("pad", "same")]
    type_ = helper.tensor_dtype_to_np_dtype(kind)
    nodes = [
        helper.make_node("Equal", ["x", "seven"], ["pad"], "pads/Equal_1"),
        helper.make_node("Equal", ["x", "y"], ["same"], "same/Equal_2"),
    ]
    constant = numpy_helper.from_array(np.array(7, dtype=type_), "seven")
    graph = helper.make_graph(nodes, "g", inputs, outputs, [constant])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def run(graph: onnx.ModelProto, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    return list(session.run(None, {"x": x, "y": y}))


def test_whole_numbers_are_compared_without_it() -> None:
    graph = without_equal(made(TensorProto.INT64))
    onnx.checker.check_model(graph, full_check=True)
    assert "Equal" not in {node.op_type for node in graph.graph.node}
    x, y = (np.array([case[side] for case in CASES], dtype=np.int64) for side in (0, 1))
    pad, same = run(graph, x, y)
    assert pad.tolist() == (x == 7).tolist()
    assert same.tolist() == (x == y).tolist()


def test_floats_stay_as_they_are() -> None:
    """inf - inf is no number."""
    graph = without_equal(made(TensorProto.FLOAT))
    assert [node.op_type for node in graph.graph.node] == ["Equal", "Equal"]
