"""An ONNX file that another tool exported: wrapped as it is, or refused."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from xlt_training.exporting import checkpoint as export

from tests.xlt_training.classifiers import edit
from xlt_serve import load
from xlt_serve.errors import DataError, ExportRefused, UsageError

TEXTS = ["the goal was in our match", "bread and soup", "rain, wind"]


def renamed(graph: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    """With other names of its dimensions."""
    for value in (*graph.graph.input, *graph.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = names.get(dim.dim_param, dim.dim_param)
    return graph


@pytest.fixture
def exported(bundle: Path, tmp_path: Path) -> Path:
    """As the hub has them: ``onnx/model.onnx``, its weights beside it, config and tokenizer above."""
    home = tmp_path / "topics"
    (home / "onnx").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundle / name, home / name)
    graph = onnx.load(str(bundle / "plain.onnx"))
    renamed(graph, {"batch": "batch_size", "length": "sequence_length"})
    onnx.save(
        graph, str(home / "onnx" / "model.onnx"), save_as_external_data=True, location="model.data"
    )
    return home / "onnx" / "model.onnx"


def test_it_answers_as_the_graph_did(exported: Path, bundle: Path, tmp_path: Path) -> None:
    made = export.export(exported, tmp_path / "wrapped", export.Order(notes="as it came"))
    manifest = made.manifest
    original = load(bundle)
    assert manifest.labels == original.labels
    assert "no torch model" in manifest.checks["not_gated"]
    assert (manifest.scores, manifest.calibration) == ({}, {})
    assert manifest.notes == "as it came"
    weights = hashlib.sha256((made.path / "weights.bin").read_bytes()).hexdigest()
    assert manifest.files["weights.bin"] == weights
    assert "not gated" in (made.path / "README.md").read_text()
    temperature = original.bundle.manifest.temperature("plain")
    for given, expected in zip(
        load(made.path).predict(TEXTS), original.predict(TEXTS), strict=True
    ):
        assert given.label == expected.label
        warmed = {name: p**temperature for name, p in expected.probabilities.items()}
        whole = sum(warmed.values())
        assert given.probabilities == pytest.approx(
            {n: p / whole for n, p in warmed.items()}, abs=1e-5
        )


def without_logits(graph: onnx.ModelProto) -> None:
    graph.graph.node[-1].output[0] = graph.graph.output[0].name = "sentence_embedding"


def with_positions(graph: onnx.ModelProto) -> None:
    graph.graph.input.append(graph.graph.input[0])
    graph.graph.input[-1].name = "position_ids"


def of_one_size(graph: onnx.ModelProto) -> None:
    graph.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


SPOILED: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "no logits": (without_logits, "sentence_embedding: must have logits"),
    "other inputs": (with_positions, "position_ids: must be input_ids, attention_mask"),
    "one size": (of_one_size, r"must be int64 \[any batch, any length\].*dynamic"),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_what_serving_can_not_ask_is_refused(kind: str, exported: Path, tmp_path: Path) -> None:
    spoil, said = SPOILED[kind]
    graph = onnx.load(str(exported))
    spoil(graph)
    exported.with_name("model.data").unlink()
    onnx.save(graph, str(exported))
    with pytest.raises(DataError, match=said):
        export.export(exported, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_not_there_or_no_graph_is_said(exported: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"none\.onnx: is not there"):
        export.export(tmp_path / "none.onnx", out)
    with pytest.raises(UsageError, match="--precision: an ONNX file is wrapped as it is"):
        export.export(exported, out, export.Order(precision="int8"))
    with pytest.raises(UsageError, match="--languages"):
        export.export(exported, out, export.Order(languages=["en"], graphs=[]))
    edit(exported.parent.parent / "config.json", id2label={"0": "a", "1": "b"}, label2id=None)
    with pytest.raises(ExportRefused, match=r"8×3 for 8 rows, 2 labels"):
        export.export(exported, out)
    (exported.parent.parent / "config.json").unlink()
    with pytest.raises(DataError, match=r"has no config\.json beside it"):
        export.export(exported, out)
    exported.write_bytes(b"nothing")
    with pytest.raises(DataError, match="is no valid ONNX graph"):
        export.export(exported, out)
    assert not out.exists()
