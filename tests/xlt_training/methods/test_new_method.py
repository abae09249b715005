"""A new method is its file and a line in the registry: nothing else has to know it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from xlt_training.exporting import checkpoint as export
from xlt_training.loop import config, recipes, trainer
from xlt_training.loop.method import Method, Objective, TrainedNoise, Trait
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Loss
from xlt_training.methods import METHODS

from tests import ROOT
from tests.imports import imports, tree
from xlt_serve import load
from xlt_serve.cli.main import main
from xlt_serve.errors import ConfigError


@dataclass
class Jitter(Method):
    """The same shift on every embedding of a batch."""

    traits = frozenset({Trait.CHANGES_EMBEDDINGS})
    graphs = ("perturbed",)

    width: float = 0.01

    def objective(self, model: Classifier, batch: Batch, inner: Objective) -> Loss:
        embedded = model.embed(batch)
        shift = self.width * (2 * torch.rand(embedded.shape[-1]) - 1)
        loss = inner(model, replace(batch, embeddings=embedded + shift))
        return replace(loss, figures=loss.figures | {"jitter": float(shift.abs().max())})

    def noise(self) -> TrainedNoise:
        return TrainedNoise("embeddings", "uniform", self.width)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "jitter", Jitter)


def test_no_other_file_knows_a_method() -> None:
    """By import, and in the two rooms that ask methods for facts, by name."""
    known = {
        (found.importer, found.target)
        for found in imports("xlt_training")
        if found.target.startswith("xlt_training.methods.")
        and not found.importer.startswith("xlt_training.methods")
    }
    assert known == KNOWN_IMPORTS
    rooms = (ROOT / "training" / "xlt_training" / room for room in ("loop", "export"))
    for file in (file for room in rooms for file in room.glob("*.py")):
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Constant) and (name := node.value) in NAMES:
                assert (file.stem, name) in KNOWN_NAMES, f"{file}:{node.lineno} names {name}"


NAMES = {*METHODS}
# Plain fine-tuning is what remains of a config without methods, also while the head is trained alone.
KNOWN_IMPORTS = {("xlt_training.loop.config", "xlt_training.methods.vanilla")}
KNOWN_NAMES = {("checkpoint", "synonyms"), ("words", "synonyms")}  # a folder of the bundle; a file


def test_it_is_listed_and_composes_by_its_traits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    out = capsys.readouterr().out
    assert "jitter            The same shift on every embedding of a batch." in out
    assert "jitter" in recipes.methods()
    made = config.named("sib200", "synonyms,ear,jitter", ["method.jitter.width=0.5"])
    assert made.stages[-1].methods[-1] == Jitter(0.5)
    with pytest.raises(ConfigError, match="jitter before ear: its embeddings would belong to"):
        config.named("sib200", "jitter,ear")
    with pytest.raises(ConfigError, match="height is not a known key"):
        config.named("sib200", "jitter", ["method.jitter.height=1"])


def test_it_is_trained_exported_and_served(
    encoders: dict[str, Path], toy_data: Path, tmp_path: Path
) -> None:
    overrides = [f"encoder={encoders['xlm-roberta']}", f"task.data={toy_data}"]
    overrides += ["train.max_steps=2", "train.head_first=0", "method.jitter.width=0.02"]
    made = config.named("sib200", "l2_anchor,jitter", overrides)
    metrics = trainer.train(made, tmp_path / "run")
    assert any("figure/jitter" in entry for entry in metrics["log"])
    bundle = export.export(tmp_path / "run", tmp_path / "bundle")
    assert list(bundle.manifest.graphs) == ["plain", "perturbed"]
    assert bundle.manifest.noise == {"at": "embeddings", "kind": "uniform", "scale": 0.02}
    (answer,) = load(bundle.path).predict(["goal match team"], mode="smoothed")
    assert answer.mode == "smoothed"
