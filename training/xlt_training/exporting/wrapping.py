"""A classifier that is ONNX already, as optimum and sentence-transformers export it, made a bundle.

The graph stays as it is, but for the names of its dimensions and the place of its weights. There is no
torch model to compare it with: the bundle says that it is not gated.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto
from transformers import AutoConfig

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Graph, Manifest
from xlt_serve.classifier import Classifier as Served
from xlt_serve.errors import DataError, ExportRefused, UsageError, first_line
from xlt_serve.runtime import onnx_file
from xlt_serve.runtime.graph_io import PlainIO
from xlt_training.data.sentences import sentences
from xlt_training.exporting import card, weights
from xlt_training.exporting.order import Order
from xlt_training.loop import brought, pretrained
from xlt_training.loop.model import Description

NOT_GATED = "wrapped as it came: no torch model was there to compare it with"
TAKEN = ("name", "notes", "source_language", "pairs")
"""Parts of an order that make sense for a finished graph."""


def wrapped(file: Path, order: Order, folder: Path) -> Path:
    """A bundle of ``file`` and the config and tokenizer beside it, or in the folder above."""
    refuse_options(order)
    graph = read(file)
    home = home_of(file)
    config = brought.read_config(home)
    labels = brought.labels_of(home, config)
    pretrained.check(str(home))
    tokenizer = pretrained.load_tokenizer(home)
    if tokenizer.pad_token_id is None:
        raise DataError(home, *brought.NO_PADDING)
    room = brought.room(AutoConfig.from_pretrained(home, trust_remote_code=False), tokenizer)
    source = order.source_language or "en"
    described = brought.description(str(home), config, labels, source, order.pairs, room)
    fit_names(file, graph, len(labels))
    folder.mkdir()
    weights.save({"plain": graph}, folder)
    pretrained.save_tokenizer(tokenizer, folder)
    (folder / brought.CONFIG).write_bytes((home / brought.CONFIG).read_bytes())
    manifest = manifest_of(order, described, graph, tokenizer.pad_token_id, folder)
    (folder / card.NAME).write_text(card.card(manifest), encoding="utf-8")
    refuse_silence(file, Served(bundles.save(folder, manifest)))
    print(f"not gated: {NOT_GATED}", file=sys.stderr)
    return folder


def refuse_options(order: Order) -> None:
    for field in fields(order):
        given = getattr(order, field.name)
        given = tuple(given) if isinstance(given, list) else given
        if field.name not in TAKEN and given != field.default:
            flag = field.name.replace("_", "-")
            raise UsageError(
                f"--{flag}",
                "an ONNX file is wrapped as it is",
                "leave it out, or export the checkpoint",
            )


def read(file: Path) -> onnx.ModelProto:
    """The graph with all its weights."""
    try:
        graph = onnx.load(str(file))
        onnx.checker.check_model(graph)
    except FileNotFoundError as error:
        raise DataError(file, f"is not there, or its weights ({first_line(error)})") from None
    except Exception as error:  # onnx and protobuf share no base class but this
        raise DataError(
            file, f"is no valid ONNX graph ({first_line(error)})", "export it again"
        ) from None
    return graph


def home_of(file: Path) -> Path:
    """The folder with its config: its own, or that above (the hub's repositories have ``onnx/``)."""
    for folder in (file.parent, file.parent.parent):
        if (folder / brought.CONFIG).is_file():
            return folder
    raise DataError(
        file, f"has no {brought.CONFIG} beside it", "put the model's config and tokenizer there"
    )


def fit_names(file: Path, graph: onnx.ModelProto, labels: int) -> None:
    """Give the dimensions the names that serving knows; refuse inputs and outputs that it does not."""
    known = PlainIO.inputs(typed=True)
    weights_of = {tensor.name for tensor in graph.graph.initializer}
    inputs = [value for value in graph.graph.input if value.name not in weights_of]
    names = [value.name for value in inputs]
    if set(names) - set(known) or not set(PlainIO.inputs(typed=False)) <= set(names):
        raise DataError(
            f"{file}: inputs {', '.join(names)}",
            f"must be {', '.join(known)}, the last if the model reads it",
            "export it with optimum for text-classification",
        )
    for value in inputs:
        tensor = value.type.tensor_type
        dims = tensor.shape.dim
        if (
            tensor.elem_type != TensorProto.INT64
            or len(dims) != 2
            or any(d.dim_value for d in dims)
        ):
            raise DataError(
                f"{file}: {value.name}",
                "must be int64 [any batch, any length]",
                "export it with dynamic axes",
            )
        for dim, name in zip(dims, known[value.name], strict=True):
            dim.dim_param = str(name)
    outputs = {value.name: value for value in graph.graph.output}
    if "logits" not in outputs:
        raise DataError(
            f"{file}: outputs {', '.join(outputs)}",
            "must have logits: bundles classify",
            "export a classifier; for vectors alone there is no bundle",
        )
    dims = outputs["logits"].type.tensor_type.shape.dim
    if len(dims) != 2 or dims[1].dim_value not in (0, labels):
        shown = ", ".join(dim.dim_param or str(dim.dim_value) for dim in dims)
        raise DataError(
            f"{file}: logits [{shown}]", f"must be [batch, {labels}], a label each", "mend id2label"
        )
    dims[0].dim_param = "batch"
    del graph.graph.value_info[:]  # they have the old names


def manifest_of(
    order: Order, described: Description, graph: onnx.ModelProto, pad_id: int, folder: Path
) -> Manifest:
    found = onnx_file.read(folder / "plain.onnx")
    plain = Graph("plain.onnx", tuple(found.inputs), tuple(found.outputs), found.precision)
    return Manifest(
        name=order.name,
        version="",
        task=described.task,
        pair=described.pair,
        labels=tuple(described.labels),
        source_language=described.source_language,
        languages=(described.source_language,),
        method=dict(described.config),
        graphs={"plain": plain},
        tokenizer="tokenizer.json",
        max_length=described.max_length,
        pad_id=pad_id,
        notes=order.notes,
        checks={"not_gated": NOT_GATED},
    )


def refuse_silence(file: Path, served: Served) -> None:
    """It must answer one sentence of each language, as serving will ask it."""
    texts: list[Any] = [of_language[0] for of_language in sentences().values()]
    if served.bundle.manifest.pair:
        texts = [(text, texts[0]) for text in texts]
    try:
        answers = served.predict(texts)
    except Exception as error:  # whatever onnxruntime has to say of a graph
        raise ExportRefused(
            file, f"does not run ({first_line(error)})", "export it again"
        ) from None
    if wrong := [answer.error for answer in answers if answer.error]:
        raise ExportRefused(file, f"can't be asked: {wrong[0].message}", "export it again")
