"""A checkpoint becomes a bundle, after its graph has shown that it agrees with the model.

It is one of ``xlt train``, or any classifier as transformers saves it. A finished ONNX file is wrapped.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from safetensors.torch import load_file
from torch import nn

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle, Graph, Manifest
from xlt_serve.classifier import Classifier as Served
from xlt_serve.errors import BundleError, ExportRefused, UsageError
from xlt_serve.signing.signatures import SIGNATURE
from xlt_serve.text import synonyms
from xlt_serve.text.synonyms import Table
from xlt_training.exporting import (
    brought_text,
    card,
    gate,
    parity,
    speed,
    tensorrt,
    trained,
    trim,
    weights,
)
from xlt_training.exporting import fp16 as half
from xlt_training.exporting import graph as graphs_of
from xlt_training.exporting import int8 as quantize
from xlt_training.exporting.order import AGREEMENT as AGREEMENT
from xlt_training.exporting.order import Order as Order
from xlt_training.exporting.wrapping import wrapped
from xlt_training.loop import brought, pretrained
from xlt_training.loop import model as models
from xlt_training.loop.method import Method
from xlt_training.loop.model import Description
from xlt_training.loop.network import Classifier

TOLERANCE = 1e-5
BESIDE = (bundles.MANIFEST, card.NAME, SIGNATURE)
"""Files of a bundle that its manifest does not list."""
# (graph, pattern of the layers that stay fp32) → graph
PRECISIONS: dict[str, Callable[[onnx.ModelProto, str], onnx.ModelProto]] = {
    "fp32": lambda graph, exclude: graph,
    "fp16": half.fp16,
    "int8": quantize.int8,
}
PACKAGES = (
    "xlt-serve",
    "torch",
    "transformers",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "tokenizers",
    "numpy",
)


@dataclass(frozen=True)
class Loaded:
    """A loaded checkpoint with its traced graphs and the text that it is judged on. ``few``: that of the
    sentences that ship; ``unjudged``: why it may turn out not to be calibrated."""

    model: Classifier
    description: Description
    methods: list[Method]
    traced: dict[str, onnx.ModelProto]
    texts: dict[str, gate.Text]
    trimmed: dict[str, int]
    tables: list[Table]
    trained_words: dict[str, Any]
    few: bool = False
    unjudged: str = ""


def export(checkpoint: Path | str, out: Path, order: Order | None = None) -> Bundle:
    """Write a bundle to ``out``, whole or not at all."""
    order = order or Order()
    check(order, out)
    order = replace(order, name=order.name or out.name)
    if str(checkpoint).endswith(".onnx"):
        return written(out, lambda scratch: wrapped(Path(checkpoint), order, scratch / "onnx"))
    source = prepare(checkpoint, order)
    refuse_other_labels(out, source.description)

    def made(scratch: Path) -> Path:
        if order.precision == "auto":
            return fastest(source, order, scratch)
        return attempt(source, order, scratch / order.precision)

    return written(out, made)


def written(out: Path, make: Callable[[Path], Path]) -> Bundle:
    """The bundle that ``make`` leaves in a scratch folder, under its name once it is whole."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".export-") as scratch:
        folder = make(Path(scratch))
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)
    return bundles.load(out)


def check(order: Order, out: Path) -> None:
    if order.precision not in (*PRECISIONS, "auto"):
        raise UsageError(
            f"precision={order.precision!r}", f"must be one of {', '.join([*PRECISIONS, 'auto'])}"
        )
    if order.tensorrt and order.precision == "int8":
        raise UsageError(
            "--tensorrt with --precision int8",
            "TensorRT does not take integer products with a scale per token",
            "export with --precision fp16",
        )
    if order.target_error is not None and not 0 <= order.target_error < 1:
        raise UsageError(f"target_error={order.target_error}", "must be in [0, 1)")
    try:
        re.compile(order.exclude)
    except re.error as error:
        raise UsageError(
            f"exclude={order.exclude!r}", f"is no regular expression ({error})"
        ) from None
    if out.exists() and any(out.iterdir()) and not (out / bundles.MANIFEST).is_file():
        raise UsageError(out, "is not empty and holds no bundle", "give an empty or new --out")
    if out.exists():
        refuse_strange_files(out)


def refuse_strange_files(out: Path) -> None:
    """A bundle that is replaced goes whole: what somebody put beside its files would go too."""
    with contextlib.suppress(BundleError):  # one that is broken may be made anew
        known = {*bundles.read_manifest(out / bundles.MANIFEST).files, *BESIDE}
        there = (file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file())
        if strange := sorted(set(there) - known):
            raise UsageError(
                out,
                f"holds what is no part of its bundle: {', '.join(strange[:5])}",
                "move it elsewhere, or give another --out",
            )


def refuse_other_labels(out: Path, description: Description) -> None:
    """Another classifier under the name of this one is hardly meant."""
    if not (out / bundles.MANIFEST).is_file():
        return
    with contextlib.suppress(BundleError):
        old = bundles.read_manifest(out / bundles.MANIFEST)
        if set(old.labels) != set(description.labels) or old.pair != description.pair:
            raise UsageError(
                out,
                f"holds the bundle of another classifier, {old.name} ({', '.join(old.labels[:5])})",
                "remove it first, or give another --out",
            )


def prepare(checkpoint: Path | str, order: Order) -> Loaded:
    tables = [
        synonyms.read(file, language) for language, file in synonyms.files(order.synonyms).items()
    ]
    own = (Path(checkpoint) / models.DESCRIPTION).is_file()
    refuse_options(order, own)
    if own:
        model, description = models.load(Path(checkpoint))
    else:
        source = order.source_language or "en"
        model, description = brought.load(str(checkpoint), source, order.pairs or bool(order.pair))
    methods = models.methods_of(description)
    trimmed = trim.trim(model, order.trim_vocab) if order.trim_vocab else {}
    graphs = trained.chosen_graphs(order.graphs, methods)
    if own:
        texts = gate.real_text(description, order.data, order.languages, order.trim_vocab)
        refuse_no_threshold(order, description, texts)
    else:
        texts = brought_text.text_of(description, order.rows, order.languages, order.trim_vocab)
    traced = {name: trace(name, model, methods, vector_of(order)) for name in graphs}
    words = trained.trained_words(methods, description)
    made = Loaded(model, description, methods, traced, texts, trimmed, tables, words)
    if own:
        return replace(
            made, unjudged=f"the task's data are not there, give --data {of_data(description)}"
        )
    return replace(made, few=not order.file, unjudged=brought_text.UNJUDGED)


def refuse_no_threshold(
    order: Order, description: Description, texts: dict[str, gate.Text]
) -> None:
    """Before anything is traced: a threshold that was asked for needs rows that it can be found on."""
    source = description.source_language
    dev = texts[source].dev if source in texts else []
    if order.target_error is None or any(each.label in description.labels for each in dev):
        return
    raise UsageError(
        f"--target-error {order.target_error}",
        f"needs the dev rows in {source!r}, and they are not there",
        f"give --data {of_data(description)}, or leave it out",
    )


def of_data(description: Description) -> str:
    """What ``--data`` takes."""
    own = {
        "files": "FILE, the labelled dev rows (a file, a folder, or dev-{language}.csv)",
        "hub": "OWNER/DATASET, the dataset's name",
    }
    return own.get(description.task, "DIR, the folder of the task's files")


def refuse_options(order: Order, own: bool) -> None:
    """Those that say of a checkpoint what this kind says itself."""
    if own:
        wrong = {
            "--file": bool(order.file),
            "--source-language": bool(order.source_language),
            "--pairs": order.pairs,
        }
        rule = "is for classifiers that others made; a checkpoint of xlt train says it itself"
        remedy = "leave it out; --data names its data"
    else:
        wrong = {"--data": bool(order.data)}
        rule, remedy = "is for checkpoints of xlt train", "give --file FILE"
        if order.target_error is not None and not order.label:
            wrong["--target-error"] = True
            rule, remedy = "needs labelled rows", "give --file FILE --label COL"
    for name, given in wrong.items():
        if given:
            raise UsageError(name, rule, remedy)
    order.rows.check()


def attempt(source: Loaded, order: Order, folder: Path) -> Path:
    """A bundle in ``folder`` in the precision of the order, or a refusal."""
    folder.mkdir()
    precision, model = order.precision, source.model
    traced = {
        name: PRECISIONS[precision](made, order.exclude) for name, made in source.traced.items()
    }
    if order.tensorrt:
        traced = {name: tensorrt.fitted(made) for name, made in traced.items()}
    weights.save(traced, folder)
    pretrained.save_tokenizer(model.tokenizer, folder)
    model.hf.config.save_pretrained(folder)
    checks: dict[str, Any] = {
        "shapes": {g: check_shapes(g, model, source.methods, folder, precision) for g in traced}
    }
    if source.description.trained_on:
        checks["trained_on"] = source.description.trained_on
    if source.trimmed:
        checks["trimmed"] = source.trimmed | {"languages": list(order.trim_vocab)}
    if order.tensorrt:
        refuse_problems(traced, folder)
        checks["tensorrt"] = True
    manifest = _manifest(order, model, source.description, traced)
    if "perturbed" in traced:
        manifest = replace(manifest, noise=trained.trained_noise(source.methods))
    if source.trained_words:
        manifest = replace(manifest, noise=manifest.noise | {"words": source.trained_words})
    manifest = replace(manifest, synonyms=save_tables(source.tables, folder))
    draft = Served(bundles.save(folder, manifest))
    if not source.texts and precision != "fp32" and order.agreement > 0:
        raise ExportRefused(
            f"--precision {precision}",
            "is judged on real text, and the task's data are not there",
            f"give --data {of_data(source.description)}, or --agreement 0 to go without",
        )
    if source.texts:
        verdict = gate.judge(
            model,
            trained.pairing_of(source.methods),
            draft,
            source.texts,
            source.description,
            order.agreement,
            order.target_error,
            source.few,
        )
        checks |= verdict.checks
        manifest = replace(manifest, calibration=verdict.calibration)
        if verdict.scores:
            languages = tuple(verdict.scores)
            manifest = replace(manifest, scores={"dev": verdict.scores}, languages=languages)
    finish(source, folder, replace(manifest, checks=checks))
    return folder


def finish(source: Loaded, folder: Path, manifest: Manifest) -> None:
    """With what training has fitted for serving, and the card."""
    found = {m: n for m, n in source.description.fitted.items() if m in manifest.graphs}
    manifest = replace(manifest, calibration={**manifest.calibration, **found})
    if "plain" not in manifest.calibration:
        print(f"not calibrated: {source.unjudged}", file=sys.stderr)
    if source.few:
        told = {"compared_on": "the sentences that ship"}
        manifest = replace(manifest, checks=manifest.checks | told)
    (folder / card.NAME).write_text(card.card(manifest), encoding="utf-8")
    bundles.save(folder, manifest)


def fastest(source: Loaded, order: Order, scratch: Path) -> Path:
    """Of the precisions that pass the gate, the one that runs fastest on this machine."""
    made: dict[str, Path] = {}
    refused: dict[str, str] = {}
    for precision in speed.candidates(order.tensorrt):
        try:
            made[precision] = attempt(
                source, replace(order, precision=precision), scratch / precision
            )
        except ExportRefused as error:
            refused[precision] = str(error)
    if not made:
        raise ExportRefused("auto", f"no precision passes the gate ({refused})")
    seconds = speed.race(made)
    best = min(seconds, key=lambda precision: seconds[precision])
    relative = {precision: value / seconds[best] for precision, value in seconds.items()}
    manifest = bundles.load(made[best]).manifest
    report = {"time_to_the_fastest": relative, "refused": refused}
    bundles.save(made[best], replace(manifest, checks=manifest.checks | {"auto": report}))
    return made[best]


def refuse_problems(traced: dict[str, onnx.ModelProto], folder: Path) -> None:
    for name in traced:
        if problems := tensorrt.problems(folder / f"{name}.onnx"):
            raise ExportRefused(
                f"the {name} graph", "; ".join(problems), "export without --tensorrt"
            )


def save_tables(tables: Sequence[Table], folder: Path) -> dict[str, str]:
    """language → file in the bundle."""
    out = {}
    for table in tables:
        out[table.language] = f"synonyms/{table.language}.json"
        (folder / "synonyms").mkdir(exist_ok=True)
        (folder / out[table.language]).write_text(table.to_json() + "\n", encoding="utf-8")
    return out


def trace(
    graph: str, model: Classifier, methods: Sequence[Method], vector: nn.Module | None = None
) -> onnx.ModelProto:
    if graph == "paired":
        pairing = trained.pairing_of(methods)
        assert pairing is not None  # chosen_graphs would have refused it
        return graphs_of.paired(model, pairing)
    if graph == "perturbed":
        return graphs_of.perturbed(model, trained.noise_place(methods))
    return graphs_of.plain(model, vector)


def vector_of(order: Order) -> nn.Module | None:
    """What becomes of the first token's vector on its way out of the graph."""
    if not order.vector:
        return None
    if not order.projection:
        return nn.Identity()
    tensors = load_file(order.projection)
    linear = nn.Linear(tensors["weight"].shape[1], tensors["weight"].shape[0])
    linear.load_state_dict({name: value.float() for name, value in tensors.items()})
    return linear.eval()


def check_shapes(
    graph: str, model: Classifier, methods: Sequence[Method], folder: Path, precision: str
) -> parity.Differences:
    """Differences to torch by shape. Only fp32 has to meet the tolerance here; the others are judged
    on real text."""
    file = folder / f"{graph}.onnx"
    if graph == "paired":
        pairing = trained.pairing_of(methods)
        assert pairing is not None
        found = parity.paired(model, file, pairing)
    elif graph == "perturbed":
        found = parity.perturbed(model, file, trained.noise_place(methods))
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


def installed(packages: Sequence[str]) -> dict[str, str]:
    """Versions of those that are there: onnxruntime has two distributions, one of them is."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _manifest(
    order: Order,
    model: Classifier,
    description: Description,
    traced: dict[str, onnx.ModelProto],
) -> Manifest:
    graphs = {
        graph: Graph(
            file=f"{graph}.onnx",
            inputs=tuple(node.name for node in made.graph.input),
            outputs=tuple(node.name for node in made.graph.output),
            precision=order.precision,
        )
        for graph, made in traced.items()
    }
    return Manifest(
        name=order.name,
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
        notes=order.notes,
        packages=installed(PACKAGES),
    )
