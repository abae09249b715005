"""xlt_training.exporting.tensorrt: which graphs TensorRT takes, judged without a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from xlt_training.exporting import fp16 as half
from xlt_training.exporting import int8 as quantize
from xlt_training.exporting import tensorrt
from xlt_training.exporting.tensorrt_operators import OPERATORS

from tests import graphs
from xlt_serve.bundle import MODELS, Bundle
from xlt_serve.runtime import onnx_file as onnxfile
from xlt_serve.runtime.open_graph import described
from xlt_serve.runtime.session import Options, Session

FLOAT, HALF, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BOOL


def model(
    tmp_path: Path,
    nodes: Sequence[onnx.NodeProto],
    types: Sequence[int] = (FLOAT, FLOAT),
    dims: Sequence[str | int] = ("batch", "length"),
    weights: Sequence[onnx.TensorProto] = (),
    domains: Sequence[tuple[str, int]] = (("", 23),),
) -> Path:
    """A graph from x to y, whose types are ``types``."""
    values = [
        helper.make_tensor_value_info(name, kind, dims)
        for name, kind in zip(("x", "y"), types, strict=True)
    ]
    made = helper.make_model(
        helper.make_graph(nodes, "g", values[:1], values[1:], weights),
        opset_imports=[helper.make_opsetid(*domain) for domain in domains],
        ir_version=10,
    )
    file = tmp_path / "g.onnx"
    onnx.save(made, str(file))
    return file


def attention(tmp_path: Path, kind: int = FLOAT, masked: int = 0, **settings: object) -> Path:
    """Attention of x with itself; ``masked``: the type of its mask, none if 0."""
    mask = helper.make_tensor("mask", masked, [1, 1, 4, 4], [1] * 16) if masked else None
    inputs = ["x", "x", "x", *(["mask"] if mask else [])]
    return model(
        tmp_path,
        [helper.make_node("Attention", inputs, ["y"], name="attend", **settings)],
        (kind, kind),
        ("batch", 2, 4, 8),
        [mask] if mask else [],
    )


def test_our_graphs_are_fit(graph_bundles: dict[str, Bundle]) -> None:
    for bundle in graph_bundles.values():
        for graph in bundle.manifest.graphs.values():
            assert tensorrt.problems(bundle.file(graph.file)) == []


def test_int8_is_refused_with_the_remedy(graph_bundles: dict[str, Bundle], tmp_path: Path) -> None:
    made = onnx.load(str(graph_bundles["bert"].file("plain.onnx")))
    onnx.save(quantize.int8(made, smallest=64), str(tmp_path / "int8.onnx"))
    for file in (tmp_path / "int8.onnx", MODELS / "topics" / "plain.onnx"):
        found = tensorrt.problems(file)
        for word in ("MatMulInteger", "uint8", "zero point must be 0"):
            assert any(word in sentence for sentence in found)
        assert all(sentence.endswith("export with --precision fp16") for sentence in found)


@pytest.mark.parametrize("graph", graphs.KINDS)
def test_fp16_is_fit_once_it_names_no_precision_of_softmax(
    graph_bundles: dict[str, Bundle], tmp_path: Path, graph: str
) -> None:
    bundle = graph_bundles["bert"]
    made = half.fp16(onnx.load(str(bundle.file(f"{graph}.onnx"))))
    onnx.save(made, str(tmp_path / "half.onnx"))
    (found,) = tensorrt.problems(tmp_path / "half.onnx")
    assert "softmax_precision must not be set" in found
    assert found.endswith("; export with --tensorrt")
    onnx.save(tensorrt.fitted(made), str(tmp_path / "fitted.onnx"))
    assert tensorrt.problems(tmp_path / "fitted.onnx") == []
    assert onnxfile.read(tmp_path / "fitted.onnx").precision == "fp16"
    inputs = onnxfile.read(tmp_path / "fitted.onnx").inputs
    generator = np.random.default_rng(0)
    feeds = graphs.feeds(inputs, graphs.sizes(inputs, generator, 6), 0, generator)
    given = Session(tmp_path / "fitted.onnx", Options(threads=1)).run(feeds)
    for name, values in (
        Session(bundle.file(f"{graph}.onnx"), Options(threads=1)).run(feeds).items()
    ):
        np.testing.assert_allclose(given[name], values, atol=2e-2)


def test_a_fit_graph_of_one_node(tmp_path: Path) -> None:
    assert tensorrt.problems(model(tmp_path, [helper.make_node("Tanh", ["x"], ["y"])])) == []


@pytest.mark.parametrize("kind", [FLOAT, HALF])
@pytest.mark.parametrize("masked", [0, BOOL, -1])
def test_fit_attention(tmp_path: Path, kind: int, masked: int) -> None:
    file = attention(tmp_path, kind, kind if masked == -1 else masked, softcap=0.0)
    assert tensorrt.problems(file) == []


def test_attention_that_the_parser_refuses(tmp_path: Path) -> None:
    for settings, says in (
        ({"softcap": 2.0}, "softcap must be 0"),
        ({"softmax_precision": FLOAT}, "softmax_precision must not be set"),
        ({"is_causal": 1, "masked": BOOL}, "causal or have a mask, not both"),
    ):
        found = tensorrt.problems(attention(tmp_path, **settings))
        assert len(found) == 1
        assert found[0].startswith("Attention attend: ")
        assert says in found[0]
        assert found[0].endswith(("; serve with provider cuda", "; export with --tensorrt"))
    flat = helper.make_node(
        "Attention", ["x", "x", "x"], ["y"], q_num_heads=2, kv_num_heads=2, name="flat"
    )
    found = tensorrt.problems(model(tmp_path, [flat], dims=("batch", "length", 8)))
    assert any("must have 4 dimensions" in sentence for sentence in found)
    two = helper.make_node("Attention", ["x", "x", "x"], ["y", "keys"], name="two")
    found = tensorrt.problems(model(tmp_path, [two], dims=("batch", 2, 4, 8)))
    assert any("only its first output" in sentence for sentence in found)


def test_attention_in_a_branch(tmp_path: Path) -> None:
    out = helper.make_tensor_value_info("z", FLOAT, ["batch", 2, 4, 8])
    branches = {
        "then_branch": helper.make_graph(
            [helper.make_node("Attention", ["x", "x", "x"], ["z"], name="inner")], "then", [], [out]
        ),
        "else_branch": helper.make_graph(
            [helper.make_node("Identity", ["x"], ["z"])], "else", [], [out]
        ),
    }
    yes = numpy_helper.from_array(np.array(True), "yes")
    file = model(
        tmp_path,
        [helper.make_node("If", ["yes"], ["y"], **branches)],
        dims=("batch", 2, 4, 8),
        weights=[yes],
    )
    assert any("must stand in the main graph" in text for text in tensorrt.problems(file))


def test_a_domain_of_onnxruntimes_own(tmp_path: Path) -> None:
    node = helper.make_node("FastGelu", ["x"], ["y"], domain="com.microsoft")
    found = tensorrt.problems(model(tmp_path, [node], domains=(("", 23), ("com.microsoft", 1))))
    assert any(text.startswith("com.microsoft: is a domain that TensorRT") for text in found)
    assert any("com.microsoft.FastGelu (1×): is no operator" in text for text in found)


@pytest.mark.parametrize(("opset", "fit"), [(8, False), (9, True), (22, True), (24, False)])
def test_opsets(tmp_path: Path, opset: int, fit: bool) -> None:
    file = model(tmp_path, [helper.make_node("Tanh", ["x"], ["y"])], domains=(("", opset),))
    found = tensorrt.problems(file)
    assert (found == []) is fit
    if not fit:
        assert found[0].startswith(
            f"opset {opset}: must be from 9 to 23 for TensorRT 10.14; export"
        )


def test_operators_that_are_not_parsed(tmp_path: Path) -> None:
    node = helper.make_node("Det", ["x"], ["y"])
    file = model(tmp_path, [node], dims=())
    # An invalid rank would be another matter: Det takes a matrix and gives a number.
    made = onnx.load(str(file))
    made.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, [4, 4]))
    onnx.save(made, str(file))
    (found,) = tensorrt.problems(file)
    assert found.startswith("Det (1×): is no operator that TensorRT 10.14 parses; export without")


def test_types_that_tensorrt_has_not(tmp_path: Path) -> None:
    double = TensorProto.DOUBLE
    file = model(tmp_path, [helper.make_node("Tanh", ["x"], ["y"])], (double, double))
    (found,) = tensorrt.problems(file)
    assert found.startswith("double (2 values): TensorRT 10.14 does not compute with it; cast")
    hidden = [
        helper.make_node("Cast", ["x"], ["d"], to=double),
        helper.make_node("Cast", ["d"], ["y"], to=FLOAT),
    ]
    (found,) = tensorrt.problems(model(tmp_path, hidden))
    assert found.startswith("double (1 values)")
    string = TensorProto.STRING
    found = " ".join(
        tensorrt.problems(
            model(tmp_path, [helper.make_node("Identity", ["x"], ["y"])], (string, string))
        )
    )
    assert "string (2 values)" in found
    outside = [helper.make_node("Cast", ["x"], ["y"], to=FLOAT)]
    assert tensorrt.problems(model(tmp_path, outside, (TensorProto.UINT8, FLOAT))) == []


def test_types_that_one_operator_has_not(tmp_path: Path) -> None:
    node = helper.make_node("Clip", ["x"], ["y"], name="clip")
    (found,) = tensorrt.problems(model(tmp_path, [node], (TensorProto.INT64, TensorProto.INT64)))
    assert found == "Clip clip: TensorRT 10.14 takes no int64 in Clip; cast around it in the graph"


def test_axes_that_are_computed(tmp_path: Path) -> None:
    one = numpy_helper.from_array(np.array(1, dtype=np.int64), "one")
    fixed = model(tmp_path, [helper.make_node("CumSum", ["x", "one"], ["y"])], weights=[one])
    assert tensorrt.problems(fixed) == []
    nodes = [
        helper.make_node("Add", ["one", "one"], ["axis"]),
        helper.make_node("CumSum", ["x", "axis"], ["y"], name="sum"),
    ]
    (found,) = tensorrt.problems(model(tmp_path, nodes, weights=[one]))
    assert found.startswith("CumSum sum: its axes must be a constant")
    assert found.endswith("polygraphy surgeon sanitize --fold-constants")


def test_dimensions_that_serving_does_not_know(tmp_path: Path) -> None:
    file = model(tmp_path, [helper.make_node("Tanh", ["x"], ["y"])], dims=("batch", "wide"))
    (found,) = tensorrt.problems(file)
    assert found.startswith("dimension wide: is none of batch, texts, draws")


def test_shapes_that_contradict_each_other_and_files_that_are_no_graph(tmp_path: Path) -> None:
    file = model(tmp_path, [helper.make_node("MatMul", ["x", "x"], ["y"])], dims=(2, 3))
    assert any("is no valid ONNX graph" in text for text in tensorrt.problems(file))
    file.write_bytes(b"nonsense")
    assert any("is no valid ONNX graph" in text for text in tensorrt.problems(file))


def test_the_list_holds_operators_of_onnx_only() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas()}
    assert set(OPERATORS) <= known
    assert not set(OPERATORS) & {"MatMulInteger", "RotaryEmbedding", "RMSNormalization", "Det"}


@pytest.mark.slow
@pytest.mark.skipif(
    not (find_spec("polygraphy") and find_spec("onnx_graphsurgeon")),
    reason="pip install polygraphy onnx-graphsurgeon",
)
@pytest.mark.parametrize("graph", graphs.KINDS)
def test_polygraphy_sanitizes_our_graphs_without_changing_them(
    graph_bundles: dict[str, Bundle], tmp_path: Path, graph: str
) -> None:
    bundle = graph_bundles["bert"]
    out = tmp_path / "sane.onnx"
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("polygraphy"), "surgeon", "sanitize"),
            "--fold-constants",
            *(bundle.file(f"{graph}.onnx"), "-o", out),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert tensorrt.problems(out) == []
    inputs = described(bundle, graph).inputs
    generator = np.random.default_rng(0)
    feeds = graphs.feeds(inputs, graphs.sizes(inputs, generator, 6), 0, generator)
    given = Session(out, Options(threads=1)).run(feeds)
    for name, values in (
        Session(bundle.file(f"{graph}.onnx"), Options(threads=1)).run(feeds).items()
    ):
        np.testing.assert_allclose(given[name], values, atol=1e-5)
