"""A checkpoint becomes a bundle, after its graph has shown that it agrees with the model."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from training import gate, parity, quantize, weights
from training import graph as graphs_of
from training import model as models
from training.method import Method
from training.methods.adversarial import Adversarial
from training.methods.noise import Noise
from training.methods.xmixup import XMixup
from training.model import Description
from training.network import Classifier
from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle, Graph, Manifest
from xlt_serve.errors import ExportRefused, UsageError
from xlt_serve.pipeline import Classifier as Served

TOLERANCE = 1e-5
AGREEMENT = 0.99
GRAPHS = ("plain", "perturbed", "paired")
PACKAGES = ("xlt-serve", "torch", "transformers", "onnx", "onnxruntime", "tokenizers", "numpy")


def export(
    checkpoint: Path,
    out: Path,
    *,
    name: str = "",
    precision: str = "fp32",
    graphs: Sequence[str] = (),
    data: str = "",
    notes: str = "",
    agreement: float = AGREEMENT,
) -> Bundle:
    """Write a bundle to ``out``, whole or not at all.

    ``graphs``: plain always; none given: perturbed too where training used noise, paired where it
    mixed. With ``data`` (the task's folder; by default that of training, if it is still there) the
    gate also compares labels on real text per language, and the probabilities are calibrated.
    """
    if precision not in ("fp32", "int8"):
        raise UsageError(f"precision={precision!r}", "must be fp32 or int8")
    if out.exists() and any(out.iterdir()) and not (out / bundles.MANIFEST).is_file():
        raise UsageError(out, "is not empty and holds no bundle", "give an empty or new --out")
    model, description = models.load(checkpoint)
    methods = models.methods_of(description)
    wanted = chosen_graphs(graphs, methods)
    if description.task != "files":
        data = data or str(description.config.get("task", {}).get("data", ""))
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".export-") as scratch:
        folder = Path(scratch) / "bundle"
        folder.mkdir()
        traced = {graph: trace(graph, model, methods) for graph in wanted}
        if precision == "int8":
            traced = {graph: quantize.int8(made) for graph, made in traced.items()}
        weights.save(traced, folder)
        model.tokenizer.save_pretrained(folder)
        model.hf.config.save_pretrained(folder)
        checks: dict[str, Any] = {
            "shapes": {g: check_shapes(g, model, methods, folder, precision) for g in wanted}
        }
        manifest = _manifest(name or out.name, model, description, traced, precision, notes)
        draft = Served(bundles.save(folder, manifest))
        texts = gate.real_text(description, data)
        if not texts and precision != "fp32" and agreement > 0:
            raise ExportRefused(
                f"--precision {precision}",
                "is judged on real text, and the task's data are not there",
                "give --data DIR, or --agreement 0 to go without",
            )
        if texts:
            verdict = gate.judge(model, draft, texts, description, agreement)
            checks["languages"] = verdict.agreement
            manifest = dataclasses.replace(
                manifest,
                calibration={"plain": verdict.calibration} if verdict.calibration else {},
                scores={"dev": verdict.scores},
                languages=tuple(verdict.scores),
            )
        else:
            print("not calibrated: the task's data are not there, give --data DIR", file=sys.stderr)
        del draft
        bundles.save(folder, dataclasses.replace(manifest, checks=checks))
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)
    return bundles.load(out)


def chosen_graphs(asked: Sequence[str], methods: Sequence[Method]) -> list[str]:
    """Which graphs to make, in the order of GRAPHS."""
    if unknown := sorted(set(asked) - set(GRAPHS)):
        raise UsageError(f"graphs {', '.join(unknown)}", f"known are {', '.join(GRAPHS)}")
    mixes = any(isinstance(method, XMixup) for method in methods)
    if "paired" in asked and not mixes:
        raise UsageError("graph paired", "needs a model trained with xmixup", "leave it out")
    if asked:
        return [graph for graph in GRAPHS if graph in asked or graph == "plain"]
    noisy = any(isinstance(method, Noise | Adversarial) for method in methods)
    return ["plain", *(["perturbed"] if noisy else []), *(["paired"] if mixes else [])]


def noise_place(methods: Sequence[Method]) -> str:
    """Where noise goes at prediction: where training added it, else on the embeddings."""
    return next((m.at for m in methods if isinstance(m, Noise | Adversarial)), "embeddings")


def trace(graph: str, model: Classifier, methods: Sequence[Method]) -> onnx.ModelProto:
    if graph == "perturbed":
        return graphs_of.perturbed(model, noise_place(methods))
    if graph == "paired":
        return graphs_of.paired(model, _mixup(methods).layer)
    return graphs_of.plain(model)


def check_shapes(
    graph: str, model: Classifier, methods: Sequence[Method], folder: Path, precision: str
) -> parity.Differences:
    """Differences to torch by shape. Only fp32 has to meet the tolerance here; int8 is judged on
    real text."""
    file = folder / f"{graph}.onnx"
    if graph == "perturbed":
        found = parity.perturbed(model, file, noise_place(methods))
    elif graph == "paired":
        found = parity.paired(model, file, _mixup(methods))
    else:
        found = parity.plain(model, file)
    worst = max(found, key=lambda shape: found[shape])
    if precision == "fp32" and not found[worst] <= TOLERANCE:
        raise ExportRefused(
            f"{found[worst]:.2e}",
            f"is how far the {graph} graph's logits are from torch's at shape {worst}, over {TOLERANCE}",
            "report this with the encoder's config.json",
        )
    return found


def _mixup(methods: Sequence[Method]) -> XMixup:
    return next(method for method in methods if isinstance(method, XMixup))


def _manifest(
    name: str,
    model: Classifier,
    description: Description,
    traced: dict[str, onnx.ModelProto],
    precision: str,
    notes: str,
) -> Manifest:
    graphs = {
        graph: Graph(
            file=f"{graph}.onnx",
            inputs=tuple(node.name for node in made.graph.input),
            outputs=tuple(node.name for node in made.graph.output),
            precision=precision,
        )
        for graph, made in traced.items()
    }
    return Manifest(
        name=name,
        version="",
        task=description.task,
        pair=description.pair,
        labels=tuple(description.labels),
        source_language=description.source_language,
        languages=(description.source_language,),
        method={
            key: description.config[key]
            for key in ("encoder", "stages", "seed", "select")
            if key in description.config
        },
        graphs=graphs,
        tokenizer="tokenizer.json",
        max_length=description.max_length,
        pad_id=model.tokenizer.pad_token_id,
        notes=notes,
        packages={package: importlib.metadata.version(package) for package in PACKAGES},
    )
