from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from xlt_training.data import load_split
from xlt_training.exporting import checkpoint as export
from xlt_training.exporting import fp16 as half
from xlt_training.exporting import gate, graph, parity, speed, tensorrt, trained, weights
from xlt_training.exporting import int8 as quantize
from xlt_training.loop import config, evaluate, model, trainer
from xlt_training.loop.network import Classifier as Network
from xlt_training.loop.types import Example
from xlt_training.methods.noise import Noise
from xlt_training.methods.soft_prompt import SoftPrompt
from xlt_training.methods.xmixup import XMixup

from tests import ROOT
from xlt_serve import bundle as bundles
from xlt_serve import load
from xlt_serve.classifier import Classifier
from xlt_serve.errors import DataError, ExportRefused, UsageError
from xlt_serve.evaluation import distance
from xlt_serve.runtime.session import Session

_TRACED: dict[str, onnx.ModelProto] = {}


@pytest.fixture(autouse=True)
def traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights give the same plain graph: torch takes seconds to trace it, once is enough."""
    trace = graph.plain

    def plain(network: Network, vector: torch.nn.Module | None = None) -> onnx.ModelProto:
        if vector is not None:
            return trace(network, vector)
        digest = hashlib.sha256(repr(network.hf.config).encode())
        for name, tensor in sorted(network.state_dict().items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        if digest.hexdigest() not in _TRACED:
            _TRACED[digest.hexdigest()] = trace(network)
        out = onnx.ModelProto()
        out.CopyFrom(_TRACED[digest.hexdigest()])
        return out

    monkeypatch.setattr(graph, "plain", plain)


def served_logits(classifier: Classifier, examples: list[Example]) -> np.ndarray:
    return classifier.logits(gate.tokenised(classifier, examples))


SHAPES = [(1, 1), (1, 2), (2, 1), (1, 7), (4, 33), (8, 128), (8, 512)]


@pytest.mark.parametrize("kind", ["checkpoint", "pair_checkpoint"])
def test_graph_and_torch_agree_on_every_shape(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """XLM-R and BERT, from one token to 512, rows padded to different degrees."""
    network, _ = model.load(request.getfixturevalue(kind))
    tokenizer = network.tokenizer
    weights.save({"plain": graph.plain(network)}, tmp_path)
    session = Session(tmp_path / "plain.onnx")
    generator = torch.Generator().manual_seed(1)
    for rows, width in SHAPES:
        ids = torch.randint(5, len(tokenizer), (rows, width), generator=generator)
        mask = torch.ones_like(ids)
        for row in range(1, rows):
            mask[row, max(1, width - 5 * row) :] = 0
        ids[mask == 0] = tokenizer.pad_token_id
        inputs = {"input_ids": ids, "attention_mask": mask}
        if kind == "pair_checkpoint":
            inputs["token_type_ids"] = (torch.arange(width) > width // 3).long().repeat(rows, 1)
        given = session.run({name: value.numpy() for name, value in inputs.items()})["logits"]
        with torch.inference_mode():
            expected = network.hf(**inputs).logits.numpy()
        np.testing.assert_allclose(given, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "precision"),
    [("bert", "fp32"), pytest.param("xlm-roberta", "int8", marks=pytest.mark.slow)],
)
def test_three_graphs_share_one_weights_file(
    family: str, precision: str, encoders: dict[str, Path], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = model.build(str(encoders[family]), ["a", "b", "c"], 64)
    network.eval()
    XMixup().attach(network)
    made = {
        "plain": graph.plain(network),
        "perturbed": graph.perturbed(network, "embeddings"),
        "paired": graph.paired(network, XMixup()),
    }
    if precision == "int8":
        made = {name: quantize.int8(g, smallest=64) for name, g in made.items()}
    sizes = {}
    for count in (1, 3):
        folder = tmp_path / str(count)
        folder.mkdir()
        weights.save(dict(list(made.items())[:count]), folder)
        sizes[count] = (folder / "weights.bin").stat().st_size
        for name in list(made)[:count]:
            onnx.checker.check_model(str(folder / f"{name}.onnx"), full_check=True)
    assert sizes[3] <= 1.01 * sizes[1]
    tolerance = 1e-5 if precision == "fp32" else 0.2
    folder = tmp_path / "3"
    found = [
        parity.plain(network, folder / "plain.onnx"),
        parity.perturbed(network, folder / "perturbed.onnx", "embeddings"),
        parity.paired(network, folder / "paired.onnx", XMixup()),
    ]
    assert all(value <= tolerance for each in found for value in each.values())


@pytest.mark.slow
def test_noise_at_the_encoders_output_and_with_prompts(
    encoders: dict[str, Path], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = model.build(str(encoders["xlm-roberta"]), ["a", "b", "c"], 64)
    network.eval()
    weights.save({"perturbed": graph.perturbed(network, "encoder")}, tmp_path)
    found = parity.perturbed(network, tmp_path / "perturbed.onnx", "encoder")
    assert max(found.values()) <= 1e-5
    SoftPrompt(length=5).attach(network)
    weights.save({"perturbed": graph.perturbed(network, "embeddings")}, tmp_path)
    found = parity.perturbed(network, tmp_path / "perturbed.onnx", "embeddings")
    assert max(found.values()) <= 1e-5


def test_graphs_follow_the_methods() -> None:
    assert trained.chosen_graphs([], []) == ["plain"]
    assert trained.chosen_graphs([], [Noise()]) == ["plain", "perturbed"]
    assert trained.chosen_graphs([], [XMixup()]) == ["plain", "paired"]
    assert trained.chosen_graphs(["perturbed"], []) == ["plain", "perturbed"]
    assert trained.noise_place([Noise(at="encoder")]) == "encoder"
    with pytest.raises(UsageError, match="needs a model trained with xmixup"):
        trained.chosen_graphs(["paired"], [])
    with pytest.raises(UsageError, match="known are plain, perturbed, paired"):
        trained.chosen_graphs(["fast"], [])


def test_the_manifest_records_what_was_checked(bundle: Path, toy_data: Path) -> None:
    manifest = bundles.load(bundle).manifest
    assert max(manifest.checks["shapes"]["plain"].values()) <= export.TOLERANCE
    assert {row["agreement"] for row in manifest.checks["languages"].values()} == {1.0}
    assert manifest.calibration["plain"]["temperature"] > 0
    examples = load_split("sib200", toy_data, "dev", "de")
    given = load(bundle).predict([e.text for e in examples], language="de")
    right = np.mean([p.label == e.label for p, e in zip(given, examples, strict=True)])
    german = manifest.scores["dev"]["de"]
    assert german["accuracy"] == pytest.approx(right)
    for measure in ("nll", "brier", "ece"):
        assert 0 <= german[measure]["low"] <= german[measure]["value"] <= german[measure]["high"]
    assert [point["coverage"] for point in german["risk_coverage"]] == sorted(
        point["coverage"] for point in german["risk_coverage"]
    )
    assert german["risk_coverage"][-1]["error"] == pytest.approx(1 - right)
    assert manifest.checks["invariance"]["plain"]["holds"]
    assert sum(manifest.checks["lengths"]["histogram"].values()) > 100
    text = distance.read(manifest.checks[distance.ENTRY])
    assert (text.output, text.centres.shape) == ("logits", (3, 3))
    served = load(bundle)
    logits = served.logits(gate.tokenised(served, examples))
    english = load_split("sib200", toy_data, "dev", "en")  # what is typical was measured on these
    typical = text.distances(served.logits(gate.tokenised(served, english)))
    assert np.median(typical) == pytest.approx(1, abs=0.2)
    # German of the same words; of thirty texts of a toy the middle one may lie at twice that.
    assert 1 / 3 < np.median(text.distances(logits)) < 3


def test_the_bundle_gives_the_logits_of_the_checkpoint(
    bundle: Path, checkpoint: Path, toy_data: Path
) -> None:
    network, _ = model.load(checkpoint)
    examples = load_split("sib200", toy_data, "test", "en")
    expected = evaluate.logits(network, examples)
    np.testing.assert_allclose(served_logits(load(bundle), examples), expected, atol=1e-5)


def test_no_path_of_the_machine_gets_into_a_bundle(bundle: Path) -> None:
    """Exporters like to write stack traces into graphs."""
    home = str(ROOT).encode()
    for file in ("plain.onnx", "weights.bin"):
        assert home not in (bundle / file).read_bytes()
        assert b"site-packages" not in (bundle / file).read_bytes()


def test_int8_is_small_close_and_independent_of_neighbours(
    checkpoint: Path, bundle: Path, toy_data: Path, tmp_path: Path
) -> None:
    made = export.export(
        checkpoint, tmp_path / "int8", export.Order(precision="int8", agreement=0.9)
    )
    assert made.manifest.graphs["plain"].precision == "int8"
    classifier = load(made.path)
    examples = load_split("sib200", toy_data, "test", "en")
    texts = [example.text for example in examples]
    full = served_logits(load(bundle), examples)
    assert np.abs(served_logits(classifier, examples) - full).max() < 0.1 * np.abs(full).max()
    alone = [classifier.predict([text])[0].probabilities for text in texts]
    together = classifier.predict([*texts, "storm " * 50])
    for one, many in zip(alone, together, strict=False):
        assert many.probabilities == pytest.approx(one, abs=1e-5)


def test_rounding_is_within_half_a_step() -> None:
    values = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    values[3] = 0
    for axis in (0, 1):
        whole, scale = quantize.rounded(values, axis)
        assert whole.dtype == np.int8
        assert (np.abs(whole * scale - values) <= 0.5001 * scale).all()


def test_quantised_products_match_numpy(tmp_path: Path) -> None:
    """The rewritten graph against int8 arithmetic done by hand."""
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(64, 80)).astype(np.float32)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    value = onnx.helper.make_tensor_value_info
    plain = onnx.helper.make_model(
        onnx.helper.make_graph(
            [node],
            "g",
            [value("x", onnx.TensorProto.FLOAT, ["n", 64])],
            [value("y", onnx.TensorProto.FLOAT, ["n", 80])],
            [numpy_helper.from_array(weight, "w")],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 23)],
        ir_version=10,
    )
    onnx.save(quantize.int8(plain, smallest=1), tmp_path / "q.onnx")
    x = generator.normal(size=(9, 64)).astype(np.float32) * generator.uniform(0.01, 50, (9, 1))
    x = x.astype(np.float32)
    x[4] = 0
    rows, row_scale = quantize.rounded(x, axis=1)
    columns, column_scale = quantize.rounded(weight, axis=0, most=quantize.SEVEN_BITS)
    expected = (rows.astype(np.int64) @ columns.astype(np.int64)) * row_scale * column_scale
    given = Session(tmp_path / "q.onnx").run({"x": x})["y"]
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-3)


def two_levels(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Signs alone: a quantisation that nobody wants."""
    return np.sign(values).astype(np.int8), np.abs(values).max(axis=axis, keepdims=True)


def test_a_broken_quantisation_does_not_pass_the_gate(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantize, "rounded", two_levels)
    with pytest.raises(ExportRefused, match=r"(de|en) 0\.\d+.*below 0.99; keep layers"):
        export.export(checkpoint, tmp_path / "out", export.Order(precision="int8"))
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_differs_from_torch_is_refused(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = graph.plain

    def spoilt(*given: object) -> onnx.ModelProto:
        made = trace(*given)  # type: ignore[arg-type]
        for tensor in made.graph.initializer:
            if list(tensor.dims) == [3]:  # the output layer's bias
                values = numpy_helper.to_array(tensor) + np.float32(0.001)
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        return made

    monkeypatch.setattr(graph, "plain", spoilt)
    with pytest.raises(ExportRefused, match="is how far the plain graph's logits are from torch's"):
        export.export(checkpoint, tmp_path / "out")


def test_a_bundle_of_another_classifier_is_not_replaced(
    checkpoint: Path, bundle: Path, tmp_path: Path
) -> None:
    again = Path(shutil.copytree(bundle, tmp_path / "old"))
    (again / "notes.txt").write_text("precious")
    with pytest.raises(UsageError, match=r"no part of its bundle: notes\.txt"):
        export.export(checkpoint, again)
    (again / "notes.txt").unlink()
    manifest = bundles.load(again).manifest
    bundles.save(again, dataclasses.replace(manifest, labels=("bad", "good", "so so")))
    with pytest.raises(UsageError, match=r"of another classifier, .* \(bad, good, so so\)"):
        export.export(checkpoint, again)
    assert bundles.load(again).manifest.labels == ("bad", "good", "so so")


def test_out_may_be_a_bundle_but_nothing_else(
    checkpoint: Path, bundle: Path, tmp_path: Path
) -> None:
    again = Path(shutil.copytree(bundle, tmp_path / "old"))
    export.export(checkpoint, again)
    assert bundles.load(again).manifest.labels
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").write_text("precious")
    with pytest.raises(UsageError, match="is not empty and holds no bundle"):
        export.export(checkpoint, tmp_path / "thesis")
    with pytest.raises(DataError, match="is not a finished checkpoint"):
        export.export(tmp_path / "thesis", tmp_path / "new")
    with pytest.raises(UsageError, match="must be one of fp32, fp16, int8, auto"):
        export.export(checkpoint, tmp_path / "new", export.Order(precision="int4"))


def test_export_without_data_still_works_and_says_so(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = Path(shutil.copytree(checkpoint, tmp_path / "moved"))
    description = json.loads((moved / "xlt.json").read_text())
    description["config"]["task"]["data"] = str(tmp_path / "gone")
    (moved / "xlt.json").write_text(json.dumps(description))
    made = export.export(moved, tmp_path / "bundle")
    assert made.manifest.calibration == {}
    assert made.manifest.temperature("plain") == 1.0
    assert "languages" not in made.manifest.checks
    assert "not calibrated" in capsys.readouterr().err
    with pytest.raises(ExportRefused, match=r"is judged on real text.*--data DIR.*--agreement 0"):
        export.export(moved, tmp_path / "int8", export.Order(precision="int8"))
    with pytest.raises(UsageError, match=r"--target-error 0\.1: needs the dev rows in 'en'.*DIR"):
        export.export(moved, tmp_path / "sure", export.Order(target_error=0.1))
    assert not (tmp_path / "sure").exists()
    task = {"name": "files", "train": str(tmp_path / "gone.csv")}
    files = replace(model.load(moved)[1], task="files", config={"task": task})
    texts = gate.real_text(files, "")
    assert texts == {}
    with pytest.raises(UsageError, match=r"give --data FILE, the labelled dev rows"):
        export.refuse_no_threshold(export.Order(target_error=0.1), files, texts)


def test_own_files_are_gated_and_calibrated_too(
    config_file: Path, toy_data: Path, tmp_path: Path
) -> None:
    overrides = [
        "task.name=files",
        f"task.train={toy_data}/sib200/train-en.tsv",
        f"task.dev={toy_data}/sib200/dev-{{language}}.tsv",
        "train.epochs=1",
    ]
    trainer.train(config.load(config_file, overrides), tmp_path / "run")
    manifest = export.export(tmp_path / "run", tmp_path / "bundle").manifest
    assert manifest.checks["languages"]["en"]["texts"] >= 30
    assert manifest.calibration["plain"]["examples"] == 30
    assert set(manifest.scores["dev"]) == set(manifest.checks["languages"]) == {"de", "en"}
    order = export.Order(languages=["xx"])
    with pytest.raises(UsageError, match="languages xx: the task's dev data have de, en"):
        export.export(tmp_path / "run", tmp_path / "other", order)


@pytest.mark.slow
def test_all_graphs_are_gated_and_calibrated_by_mode(
    config_file: Path, toy_data: Path, tmp_path: Path
) -> None:
    """One export of a model that mixes: three graphs, each compared, paired with its temperature."""
    overrides = ["train.epochs=1", 'method=[{name = "xmixup", layer = 1}]']
    trainer.train(config.load(config_file, overrides), tmp_path / "run")
    order = export.Order(precision="int8", graphs=["perturbed", "paired"], agreement=0.8)
    manifest = export.export(tmp_path / "run", tmp_path / "bundle", order).manifest
    assert set(manifest.checks["graphs"]) == {"perturbed", "paired"}
    assert set(manifest.checks["invariance"]) == {"plain", "perturbed", "paired"}
    assert set(manifest.calibration) == {"plain", "paired"}
    size = sum(f.stat().st_size for f in (tmp_path / "bundle").iterdir() if f.suffix in GRAPH_FILES)
    plain = export.export(tmp_path / "run", tmp_path / "one", export.Order(graphs=["plain"]))
    assert plain.manifest.graphs.keys() == {"plain"}
    weights_alone = (tmp_path / "bundle" / "weights.bin").stat().st_size
    assert size < weights_alone + 3 * (tmp_path / "bundle" / "paired.onnx").stat().st_size


GRAPH_FILES = (".onnx", ".bin")


def test_fp16_is_half_the_size_and_close(
    checkpoint: Path, bundle: Path, toy_data: Path, tmp_path: Path
) -> None:
    made = export.export(checkpoint, tmp_path / "fp16", export.Order(precision="fp16"))
    examples = load_split("sib200", toy_data, "test", "en")
    full = served_logits(load(bundle), examples)
    given = served_logits(load(made.path), examples)
    assert 0 < np.abs(given - full).max() < 0.01 * np.abs(full).max()
    sizes = [(folder / "weights.bin").stat().st_size for folder in (made.path, bundle)]
    assert sizes[0] < 0.6 * sizes[1]
    onnx.checker.check_model(str(made.path / "plain.onnx"), full_check=True)
    assert made.manifest.checks["invariance"]["plain"]["tolerance"] == 0.01


def test_norms_stay_fp32_in_an_fp16_graph(checkpoint: Path) -> None:
    """A layer norm of values in the thousands would overflow where it squares them."""
    network, _ = model.load(checkpoint)
    made = half.fp16(graph.plain(network))
    kinds = {tensor.name: tensor.data_type for tensor in made.graph.initializer}
    norms = [node for node in made.graph.node if node.op_type == "LayerNormalization"]
    assert norms
    for node in norms:
        assert kinds[node.input[1]] == onnx.TensorProto.FLOAT
    products = [kinds[n.input[1]] for n in made.graph.node if n.op_type == "MatMul"]
    assert set(products) == {onnx.TensorProto.FLOAT16}


def test_excluded_layers_keep_their_precision(checkpoint: Path) -> None:
    network, _ = model.load(checkpoint)
    traced = graph.plain(network)
    kinds = [
        {
            node.name
            for node in quantize.int8(traced, exclude, 64).graph.node
            if node.op_type == "MatMul"
        }
        for exclude in ("", r"layer\.0\.")
    ]
    assert len(kinds[0]) == 0
    assert len(kinds[1]) == 6
    assert all("layer.0." in name for name in kinds[1])


def test_auto_takes_the_fastest_that_passes(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "race", lambda folders: {p: len(p) for p in folders})
    monkeypatch.setattr(speed, "candidates", lambda tensorrt: ["int8", "fp32", "fp16"])
    monkeypatch.setattr(quantize, "rounded", two_levels)
    made = export.export(checkpoint, tmp_path / "auto", export.Order(precision="auto"))
    assert made.manifest.graphs["plain"].precision == "fp32"  # int8 fails, the first of the rest
    assert made.manifest.checks["auto"]["time_to_the_fastest"] == {"fp32": 1.0, "fp16": 1.0}
    assert "below 0.99" in made.manifest.checks["auto"]["refused"]["int8"]


def test_a_race_times_real_graphs(bundle: Path) -> None:
    seconds = speed.race({"a": bundle, "b": bundle})
    assert all(0 < value < 1 for value in seconds.values())


def test_a_target_error_sets_the_threshold_of_serving(checkpoint: Path, tmp_path: Path) -> None:
    order = export.Order(target_error=0.0, languages=["de"])
    made = export.export(checkpoint, tmp_path / "bundle", order)
    assert set(made.manifest.languages) == {"en", "de"}
    plain = made.manifest.calibration["plain"]
    assert plain["target_error"] == 0.0
    scores = made.manifest.scores["dev"]
    assert scores["en"]["answered"]["error"] == 0.0
    assert 0 < scores["de"]["answered"]["coverage"] <= 1
    classifier = load(made.path)
    answers = [classifier.predict([text])[0] for text in ("we saw it", "goal match team score")]
    for answer in answers:
        sure = max(answer.probabilities.values()) >= plain["abstain_below"]
        assert (answer.label is not None) == sure
        assert answer.abstained == (None if sure else "confidence")
    assert classifier.predict(["we saw it"], abstain_below=0.0)[0].label is not None
    with pytest.raises(UsageError, match="languages xx"):
        export.export(checkpoint, tmp_path / "no", export.Order(languages=["xx"]))
    with pytest.raises(UsageError, match="TensorRT does not take integer products"):
        export.export(checkpoint, tmp_path / "no", export.Order(precision="int8", tensorrt=True))


@pytest.mark.parametrize("precision", ["fp16", pytest.param("fp32", marks=pytest.mark.slow)])
def test_a_tensorrt_export_has_nothing_that_tensorrt_refuses(
    checkpoint: Path, tmp_path: Path, precision: str
) -> None:
    order = export.Order(precision=precision, tensorrt=True, graphs=["perturbed"])
    made = export.export(checkpoint, tmp_path / "bundle", order)
    assert made.manifest.checks["tensorrt"] is True
    for name in made.manifest.graphs:
        assert tensorrt.problems(made.path / f"{name}.onnx") == []
        domains = {used.domain for used in onnx.load(made.path / f"{name}.onnx").opset_import}
        assert domains == {""}


def test_a_transposed_weight_is_quantised_too(tmp_path: Path) -> None:
    """Above its folding limit, the exporter transposes a shared weight once for each reader."""
    weight = np.random.default_rng(0).normal(size=(16, 64)).astype(np.float32)
    nodes = [
        onnx.helper.make_node("Transpose", ["w"], ["t1"], perm=[1, 0]),
        onnx.helper.make_node("MatMul", ["x", "t1"], ["h"]),
        onnx.helper.make_node("Transpose", ["w"], ["t2"], perm=[1, 0]),
        onnx.helper.make_node("MatMul", ["x", "t2"], ["g"]),
        onnx.helper.make_node("Add", ["h", "g"], ["y"]),
    ]
    sizes = {"x": ["n", 64], "y": ["n", 16]}
    described = {
        name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)
        for name, dims in sizes.items()
    }
    made = onnx.helper.make_model(
        onnx.helper.make_graph(
            nodes, "g", [described["x"]], [described["y"]], [numpy_helper.from_array(weight, "w")]
        ),
        opset_imports=[onnx.helper.make_opsetid("", 23)],
        ir_version=10,
    )
    small = quantize.int8(made, smallest=64)
    assert {node.op_type for node in small.graph.node}.isdisjoint({"Transpose", "MatMul"})
    weights.save({"q": small}, tmp_path)
    x = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    given = Session(tmp_path / "q.onnx").run({"x": x})["y"]
    expected = 2 * x @ weight.T
    assert np.abs(given - expected).max() < 0.03 * np.abs(expected).max()
