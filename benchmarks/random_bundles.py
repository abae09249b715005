"""Bundles of models with random weights, for benchmarks and tests: labels mean nothing, times do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xlt_training.exporting import fp16 as half
from xlt_training.exporting import graph as graphs_of
from xlt_training.exporting import int8 as quantize
from xlt_training.exporting import tensorrt, weights
from xlt_training.loop.network import Classifier
from xlt_training.loop.pretrained import load_classifier, load_tokenizer, save_tokenizer
from xlt_training.methods.xmixup import XMixup

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle, Graph, Manifest

PRECISIONS = ("fp32", "int8")
"""Those that a CPU is measured in."""

CONVERT: dict[str, Callable[[Any], Any]] = {
    "fp32": lambda graph: graph,
    "fp16": lambda graph: tensorrt.fitted(half.fp16(graph)),
    "int8": quantize.int8,
}


def save(
    network: Classifier,
    folder: Path,
    *,
    name: str = "random weights",
    precision: str = "fp32",
    graphs: Sequence[str] = ("plain",),
    at: str = "embeddings",
    layer: int = 1,
    checks: Mapping[str, Any] | None = None,
) -> Bundle:
    """A bundle with these graphs. ``at``: where the perturbed one adds noise; ``layer``: where the
    paired one mixes."""
    made = traced(network, graphs, at, layer)
    return write(network, folder, made, name=name, precision=precision, at=at, checks=checks)


def traced(
    network: Classifier, graphs: Sequence[str], at: str = "embeddings", layer: int = 1
) -> dict[str, Any]:
    """The graphs in fp32."""
    trace = {
        "plain": graphs_of.plain,
        "perturbed": lambda network: graphs_of.perturbed(network, at),
        "paired": lambda network: graphs_of.paired(network, XMixup(layer=layer)),
    }
    network.eval()
    pad_id = int(network.hf.config.pad_token_id)
    if network.tokenizer.pad_token is None:  # a bare tokenizer.json does not say which piece it is
        network.tokenizer.pad_token = network.tokenizer.convert_ids_to_tokens(pad_id)
    return {graph: trace[graph](network) for graph in graphs}


def write(
    network: Classifier,
    folder: Path,
    traced: Mapping[str, Any],
    *,
    name: str = "random weights",
    precision: str = "fp32",
    at: str = "embeddings",
    checks: Mapping[str, Any] | None = None,
) -> Bundle:
    """A bundle of traced graphs, in a precision."""
    converted = {graph: CONVERT[precision](made) for graph, made in traced.items()}
    pad_id = int(network.hf.config.pad_token_id)
    folder.mkdir(parents=True, exist_ok=True)
    weights.save(converted, folder)
    save_tokenizer(network.tokenizer, folder)
    described = {
        graph: Graph(
            f"{graph}.onnx",
            tuple(node.name for node in made.graph.input),
            tuple(node.name for node in made.graph.output),
            precision,
        )
        for graph, made in converted.items()
    }
    manifest = Manifest(
        name=name,
        version="",
        task="random weights",
        pair=False,
        labels=tuple(network.labels),
        source_language="en",
        languages=("en",),
        method={},
        graphs=described,
        tokenizer="tokenizer.json",
        max_length=network.encoding.max_length,
        pad_id=pad_id,
        noise={"at": at} if "perturbed" in traced else {},
        checks=dict(checks or {}),
    )
    return bundles.save(folder, manifest)


def in_each_precision(checkpoint: Path, folders: Mapping[str, Path], max_length: int) -> None:
    """Bundles of a transformers folder, by precision; those that are there already stay."""
    for precision, folder in folders.items():
        if not (folder / bundles.MANIFEST).is_file():
            model = load_classifier(str(checkpoint), {})
            network = Classifier(model, load_tokenizer(checkpoint), max_length)
            save(network, folder, name=f"{checkpoint.name}-{precision}", precision=precision)
