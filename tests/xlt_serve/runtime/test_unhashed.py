"""Every file that a graph reads must have a hash: the places where ONNX lets a tensor be elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from xlt_serve import bundle as bundles
from xlt_serve import load
from xlt_serve.errors import BundleAltered, BundleError
from xlt_serve.runtime import onnx_file
from xlt_serve.runtime.open_graph import refuse_unhashed


def tensor(location: str = "hidden.bin", offset: int = 0, length: int = 8) -> onnx.TensorProto:
    out = numpy_helper.from_array(np.zeros(2, dtype=np.float32), "w")
    set_external_data(out, location, offset, length)
    out.ClearField("raw_data")
    return out


def sparse() -> onnx.SparseTensorProto:
    indices = numpy_helper.from_array(np.zeros(2, dtype=np.int64), "i")
    return helper.make_sparse_tensor(tensor(), indices, [9])


def model(nodes: list[Any] = [], weights: list[Any] = []) -> onnx.ModelProto:  # noqa: B006
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    return helper.make_model(helper.make_graph(nodes, "g", [value], [value], weights))


def constant(**attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["c"], **attributes)


def in_function() -> onnx.ModelProto:
    made = model()
    made.functions.add(name="f", domain="d").node.append(constant(value=tensor()))
    return made


def in_default_of_function() -> onnx.ModelProto:
    made = model()
    default = helper.make_attribute("value", tensor())
    made.functions.add(name="f", domain="d").attribute_proto.append(default)
    return made


def in_training() -> onnx.ModelProto:
    made = model()
    made.training_info.add().algorithm.initializer.append(tensor())
    return made


def in_sparse() -> onnx.ModelProto:
    made = model()
    made.graph.sparse_initializer.append(sparse())
    return made


def deep(levels: int = 20) -> onnx.ModelProto:
    graph = model(weights=[tensor()]).graph
    for _ in range(levels):
        node = helper.make_node("If", ["x"], ["y"])
        node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g.CopyFrom(graph)
        graph = helper.make_graph([node], "g", [], [])
    made = model()
    made.graph.node.extend(graph.node)
    return made


PLACES: dict[str, Callable[[], onnx.ModelProto]] = {
    "initializer": lambda: model(weights=[tensor()]),
    "attribute": lambda: model([constant(value=tensor())]),
    "sparse attribute": lambda: model([constant(sparse_value=sparse())]),
    "list": lambda: model([helper.make_node("Odd", [], ["c"], values=[tensor(), tensor()])]),
    "subgraph": lambda: deep(1),
    "subgraphs": lambda: model([helper.make_node("Odd", [], ["c"], values=[deep(2).graph])]),
    "depths": deep,
    "sparse initializer": in_sparse,
    "function": in_function,
    "default": in_default_of_function,
    "training": in_training,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_tensor_elsewhere_is_seen_wherever_it_stands(place: str, tmp_path: Path) -> None:
    file = tmp_path / "g.onnx"
    file.write_bytes(PLACES[place]().SerializeToString())
    found = onnx_file.read(file).external
    assert found == {onnx_file.ExternalData("hidden.bin", 0, 8)}


def test_a_second_graph_in_one_file_is_refused(tmp_path: Path) -> None:
    """Protobuf merges both; a reader of the first alone would miss the second's weights."""
    file = tmp_path / "g.onnx"
    hidden = onnx.ModelProto(graph=model(weights=[tensor()]).graph).SerializeToString()
    file.write_bytes(model().SerializeToString() + hidden)
    assert len(onnx.load(str(file), load_external_data=False).graph.initializer) == 1
    with pytest.raises(BundleError, match="is no ONNX graph"):
        onnx_file.read(file)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.add(key="location", value="other.bin"),
        lambda data: data.__delitem__(0),
        lambda data: data.add(key="checksum") and setattr(data[1], "value", "-8"),
        lambda data: setattr(data[2], "value", "9" * 400),
        lambda data: setattr(data[2], "value", "0x10"),
    ],
)
def test_places_that_are_none_are_refused(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    odd = tensor()
    change(odd.external_data)
    (tmp_path / "g.onnx").write_bytes(model(weights=[odd]).SerializeToString())
    with pytest.raises(BundleError, match="is no ONNX graph"):
        onnx_file.read(tmp_path / "g.onnx")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (tensor("hidden.bin"), "reads 'hidden.bin', which has no sha256"),
        (tensor("../weights.bin"), "reads '../weights.bin', which has no sha256"),
        (tensor("/etc/passwd"), "has no sha256"),
        (tensor("*/_ORT_MEM_ADDR_/*"), "has no sha256"),
        (tensor("weights.bin", 0, 10**9), "up to byte 1000000000, it has"),
        (tensor("weights.bin", 10**9, 0), "up to byte 1000000000, it has"),
        (tensor("./weights.bin", 0, 8), ""),
    ],
)
def test_what_a_graph_reads_has_a_hash(tmp_path: Path, made: onnx.TensorProto, says: str) -> None:
    file = tmp_path / "plain.onnx"
    file.write_bytes(model(weights=[made]).SerializeToString())
    shipped, found = bundles.described(), onnx_file.read(file)
    if not says:
        refuse_unhashed(shipped, "plain.onnx", found)
        return
    with pytest.raises(BundleAltered, match=says):
        refuse_unhashed(shipped, "plain.onnx", found)


def test_a_compiled_engine_is_no_graph_of_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(
        model(
            [helper.make_node("EPContext", [], ["c"], domain="com.microsoft")]
        ).SerializeToString()
    )
    found = onnx_file.read(tmp_path / "g.onnx")
    with pytest.raises(BundleError, match="compiled engine"):
        refuse_unhashed(bundles.described(), "plain.onnx", found)


@pytest.mark.parametrize("graph", ["plain", "perturbed"])
def test_weights_without_a_hash_are_not_served(graph: str, tmp_path: Path) -> None:
    """Of any graph, also of one that is opened when it is first asked for."""
    shipped = bundles.load()
    folder = Path(shutil.copytree(shipped.path, tmp_path / "copy"))
    file = onnx.load(str(folder / f"{graph}.onnx"), load_external_data=False)
    for weight in file.graph.initializer:
        for entry in weight.external_data:
            if entry.key == "location":
                entry.value = "other.bin"
    (folder / f"{graph}.onnx").write_bytes(file.SerializeToString())
    saved = bundles.save(folder, shipped.manifest)
    shutil.copy(folder / "weights.bin", folder / "other.bin")
    assert "other.bin" not in saved.manifest.files
    with pytest.raises(BundleAltered, match=r"reads 'other\.bin', which has no sha256"):
        load(folder)
    assert load(bundles.save(folder, replace(saved.manifest, notes="hashed")).path)
