"""What may run on the CPU, by rule; and where the real CUDA provider puts what we export."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import cuda_stub, graphs
from xlt_serve import bundle as bundles
from xlt_serve.runtime import onnx_file
from xlt_serve.runtime.gpu.placement import Placed, misplaced, shape_arithmetic
from xlt_serve.runtime.onnx_file import Node

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def node(name: str, operator: str, inputs: str, outputs: str) -> Node:
    return Node(name, operator, tuple(inputs.split()), tuple(outputs.split()))


def test_what_hangs_on_shapes_alone_is_arithmetic() -> None:
    nodes = [
        node("a", "Shape", "ids", "shape"),
        node("b", "Gather", "shape zero", "rows"),
        node("c", "Range", "zero rows one", "positions"),
        node("d", "Gather", "table positions", "embedded"),
        node("e", "Add", "embedded ids", "sum"),
        node("f", "Shape", "sum", "later"),
        node("g", "Reshape", "sum later", "out"),
    ]
    found = shape_arithmetic(nodes, {"zero", "one", "table"})
    assert {name for name, _ in found} == {"a", "b", "c", "d", "f"}


def test_a_name_that_a_product_has_too_excuses_nothing() -> None:
    """Nodes of old bundles have no names: then all of an operator must be arithmetic."""
    nodes = [
        node("", "Shape", "x", "shape"),
        node("", "Concat", "shape one", "longer"),
        node("", "Mul", "shape one", "double"),
        node("", "Mul", "x one", "y"),
    ]
    assert shape_arithmetic(nodes, {"one"}) == {("", "Shape"), ("", "Concat")}


def test_operators_that_run_elsewhere() -> None:
    placed = [
        Placed(CUDA, "MatMul", "a"),
        Placed(CPU, "Shape", "b"),
        Placed(CPU, "MatMulInteger", "c"),
        Placed(CPU, "MatMulInteger", "d"),
    ]
    assert misplaced(placed, CUDA, {("b", "Shape")}) == {"MatMulInteger": 2}
    assert misplaced(placed, CUDA) == {"MatMulInteger": 2, "Shape": 1}
    assert misplaced(placed[:1], CUDA) == {}
    # A name that onnxruntime made itself excuses nothing.
    assert misplaced([Placed(CPU, "MatMul", "b")], CUDA, {("b", "Shape")}) == {"MatMul": 1}


def test_products_of_a_shipped_bundle_are_no_arithmetic() -> None:
    found = onnx_file.read(bundles.load("topics").file("plain.onnx"))
    operators = {operator for _, operator in shape_arithmetic(found.nodes, found.constants)}
    assert {"Shape", "Concat", "Squeeze"} <= operators
    heavy = {"MatMulIntegerToFloat", "Attention", "LayerNormalization", "Gelu", "QuantizeLinear"}
    assert heavy <= found.operators
    assert not heavy & operators


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, encoders: dict[str, Path]
) -> dict[str, list[Path]]:
    """Every graph of a family, and noise in each of its places, by precision."""
    root = tmp_path_factory.mktemp("placed")
    out: dict[str, list[Path]] = {precision: [] for precision in ("fp32", "fp16")}
    for kind, encoder, more in (
        ("xlm-roberta", "xlm-roberta", {}),
        ("bert", "bert", {"at": "encoder"}),
        ("prompts", "xlm-roberta", {"prompts": True}),
    ):
        folders = {precision: root / precision / kind for precision in out}
        graphs.make_each(encoders[encoder], folders, **more)  # type: ignore[arg-type]
        for precision, folder in folders.items():
            out[precision] += sorted(folder.glob("*.onnx"))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("version", [cuda_stub.OLDEST, cuda_stub.NEWEST])
def test_the_real_provider_takes_all_that_is_no_arithmetic(
    made: dict[str, list[Path]], tmp_path: Path, version: str
) -> None:
    """In floats; int8 has products that it has no kernel for, and is refused."""
    libraries = cuda_stub.build(version, tmp_path)
    int8 = [file for name in bundles.shipped() for file in (bundles.MODELS / name).glob("*.onnx")]
    floats = [file for files in made.values() for file in files]
    found = cuda_stub.run(version, libraries, "places", *floats, *int8)
    assert found["version"] == version
    assert len(floats) == 2 * 8
    assert len(int8) >= 4
    for file in floats:
        assert found[str(file)].get(CUDA, 0) > 50, found[str(file)]
    for file in int8:
        assert "MatMulIntegerToFloat" in found[str(file)]
        assert "elsewhere than on cuda" in found[str(file)]
