"""The reader against the onnx package, which serving does not install."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from xlt_serve.bundle import MODELS, Bundle
from xlt_serve.errors import BundleError
from xlt_serve.runtime import onnx_file as onnxfile


def dims_of(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    return tuple(d.dim_param or d.dim_value or "?" for d in value.type.tensor_type.shape.dim)


def compare(file: Path) -> onnxfile.OnnxFile:
    found, graph = onnxfile.read(file), onnx.load(str(file), load_external_data=False).graph
    for values, expected in ((found.inputs, graph.input), (found.outputs, graph.output)):
        assert list(values) == [value.name for value in expected]
        for value in expected:
            assert values[value.name].dims == dims_of(value)
            assert values[value.name].type == value.type.tensor_type.elem_type
    assert found.matrices == {t.data_type for t in graph.initializer if len(t.dims) >= 2}
    return found


def test_exported_graphs(graph_bundles: dict[str, Bundle]) -> None:
    for bundle in graph_bundles.values():
        for graph in bundle.manifest.graphs.values():
            found = compare(bundle.file(graph.file))
            assert tuple(found.inputs) == graph.inputs
            assert found.precision == "fp32"
    noise = onnxfile.read(graph_bundles["prompts"].file("perturbed.onnx")).inputs["noise"]
    assert noise.dims == ("draws", "length + 5", 32)


def test_the_shipped_bundle_is_int8() -> None:
    assert compare(MODELS / "topics" / "plain.onnx").precision == "int8"


@given(
    st.lists(st.one_of(st.integers(1, 10**9), st.sampled_from(["batch", "länge", ""])), max_size=5),
    st.sampled_from([np.float16, np.float32, np.int64]),
    st.lists(st.integers(1, 3), max_size=4),
)
def test_any_graph(
    tmp_path_factory: pytest.TempPathFactory,
    dims: list[int | str],
    kind: type,
    weight: list[int],
) -> None:
    tensor = numpy_helper.from_array(np.zeros(weight, dtype=kind), "w")
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [d or None for d in dims])
    graph = helper.make_graph([], "g", [value], [value], [tensor])
    file = tmp_path_factory.getbasetemp() / "any.onnx"
    onnx.save(helper.make_model(graph), str(file))
    assert compare(file).precision == ("fp16" if kind is np.float16 and len(weight) > 1 else "fp32")


@pytest.mark.parametrize(
    ("kinds", "precision"),
    [
        ({1}, "fp32"),
        ({1, 7, 9}, "fp32"),
        (set(), "fp32"),
        ({1, 10}, "fp16"),
        ({1, 2, 3}, "int8"),
        ({3, 10}, onnxfile.MIXED),
        ({1, 16}, onnxfile.MIXED),  # bfloat16
        ({17}, onnxfile.MIXED),  # float8
        ({11}, onnxfile.MIXED),  # double
    ],
)
def test_what_export_does_not_make_has_no_precision(kinds: set[int], precision: str) -> None:
    file = onnxfile.OnnxFile({}, {}, frozenset(kinds), frozenset(), frozenset())
    assert file.precision == precision


@given(st.binary(max_size=200))
def test_nonsense_is_an_error_not_a_crash(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "nonsense.onnx"
    file.write_bytes(content)
    says = ""
    try:
        onnxfile.read(file)
    except BundleError as error:
        says = str(error)
    assert says == "" or says.endswith("is no ONNX graph; export the bundle again")


def test_what_is_nested_deeper_than_protobuf_reads_is_no_graph(tmp_path: Path) -> None:
    def nested(depth: int) -> bytes:
        found = b""
        for _ in range(depth):  # graph → node → attribute → graph
            for field in (6, 5, 1):
                found = bytes([field << 3 | 2]) + _length(len(found)) + found
        return b"\x3a" + _length(len(found)) + found

    onnxfile._contents(nested(30))
    with pytest.raises(ValueError, match="too deep"):
        onnxfile._contents(nested(40))


def _length(value: int) -> bytes:
    out = []
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
