"""Attention with its heads unsplit computes what it computed split, to the bit."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from xlt_training.exporting import attention_heads as heads

WIDTH, HEADS = 24, 3


def layer(perm: tuple[int, ...] = (0, 2, 1, 3), first: bool = False) -> onnx.ModelProto:
    """Linear layers, heads split, Attention, heads joined: as the exporter writes them; with
    ``first``, only the first position is read."""
    generator = np.random.default_rng(0)
    constants = {
        "size": np.array([WIDTH // HEADS]),
        "rest": np.array([-1]),
        **{f"w{n}": generator.standard_normal((WIDTH, WIDTH)).astype("f") for n in "qkv"},
        **{f"b{n}": generator.standard_normal(WIDTH).astype("f") for n in "qkv"},
    }
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"], start=0, end=2),
        helper.make_node("Slice", ["sizes", "zero", "one"], ["rows"]),
        helper.make_node("Slice", ["sizes", "one", "two"], ["length"]),
        helper.make_node("Concat", ["rows", "length", "rest", "size"], ["apart"], axis=0),
        helper.make_node("Concat", ["rows", "length", "rest"], ["whole"], axis=0),
    ]
    constants |= {name: np.array([n]) for n, name in enumerate(("zero", "one", "two"))}
    for n in "qkv":
        nodes += [
            helper.make_node("MatMul", ["x", f"w{n}"], [f"m{n}"]),
            helper.make_node("Add", [f"m{n}", f"b{n}"], [f"l{n}"]),
            helper.make_node("Reshape", [f"l{n}", "apart"], [f"r{n}"]),
            helper.make_node("Transpose", [f"r{n}"], [f"t{n}"], perm=perm),
        ]
    nodes += [
        helper.make_node("Attention", ["tq", "tk", "tv", "mask"], ["a"], scale=0.3),
        helper.make_node("Transpose", ["a"], ["at"], perm=perm),
        helper.make_node("Reshape", ["at", "whole"], ["all" if first else "y"]),
    ]
    if first:
        nodes.append(helper.make_node("Slice", ["all", "zero", "one", "one", "one"], ["y"]))
    made = helper.make_model(
        helper.make_graph(
            nodes,
            "layer",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s", WIDTH]),
                helper.make_tensor_value_info("mask", TensorProto.BOOL, ["b", 1, "s", "s"]),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "s", WIDTH])],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 23)],
    )
    made.ir_version = 11
    return made


def run(graph: onnx.ModelProto) -> np.ndarray:
    generator = np.random.default_rng(1)
    mask = np.ones((2, 1, 7, 7), dtype=bool)
    mask[1, :, :, 4:] = False
    feeds = {"x": generator.standard_normal((2, 7, WIDTH)).astype("f"), "mask": mask}
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)[0]


def test_the_heads_are_merged_and_nothing_changes() -> None:
    before, after = layer(), layer()
    assert heads.merge(after) == 1
    assert not {"Transpose", "Reshape"} & {node.op_type for node in after.graph.node}
    (attention,) = (node for node in after.graph.node if node.op_type == "Attention")
    assert {a.name: a.i for a in attention.attribute if a.name.endswith("heads")} == {
        "q_num_heads": HEADS,
        "kv_num_heads": HEADS,
    }
    np.testing.assert_array_equal(run(before), run(after))


def test_only_the_query_that_is_read_is_computed() -> None:
    whole, cut = layer(first=True), layer(first=True)
    assert heads.merge(cut) == 1
    assert heads.first_query(cut) == 1
    expected = run(whole)
    assert expected.shape == (2, 1, WIDTH)
    np.testing.assert_allclose(run(cut), expected, atol=1e-6)
    products = [node for node in cut.graph.node if node.op_type == "MatMul"]
    assert sum(node.input[0] == "x" for node in products) == 2  # keys and values
    assert heads.first_query(layer()) == 0


def test_what_does_not_fit_stays() -> None:
    other = layer(perm=(0, 1, 2, 3))
    expected = other.SerializeToString()
    assert heads.merge(other) == 0
    assert other.SerializeToString() == expected
    shared = layer()
    shared.graph.output.append(helper.make_tensor_value_info("at", TensorProto.FLOAT, None))
    shared.graph.node.append(helper.make_node("Identity", ["at"], ["again"]))
    assert heads.merge(shared) == 0  # somebody else reads the heads apart
