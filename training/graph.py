"""A torch classifier as an ONNX graph."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

from training.network import Classifier
from training.types import Batch

OPSET = 23  # has the Attention operator, which onnxruntime runs fused and TensorRT ≥ 10.14 parses
WEIGHTS = "weights.bin"


class _Plain(nn.Module):
    """ids in, logits out: what a graph computes, without our classes."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        batch = Batch(input_ids, attention_mask, attention_mask, token_type_ids)
        logits: Tensor = self.model(batch).logits
        return logits


def input_names(model: Classifier) -> tuple[str, ...]:
    names = ("input_ids", "attention_mask")
    return (*names, "token_type_ids") if model.encoding.type_ids else names


def trace(model: Classifier) -> onnx.ModelProto:
    """The plain graph, any batch size and length, with its weights inside."""
    plain = _Plain(model).eval()
    # Sizes of 0 or 1 would be taken for constants: trace with 2 × 8.
    ids = torch.full((2, 8), 3)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    example = (ids, mask, torch.zeros_like(ids))[: len(input_names(model))]
    batch = torch.export.Dim("batch")
    length = torch.export.Dim("length", max=model.room)
    # The exporter talks about its own deprecations and about packages that we don't use.
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                plain,
                example,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=tuple({0: batch, 1: length} for _ in example),
                input_names=list(input_names(model)),
                output_names=["logits"],
                verbose=False,
            )
    finally:
        registration.setLevel(level)
    assert program is not None
    return without_traces(program.model_proto)


def without_traces(graph: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph without the Python stack traces and paths that the exporter writes into it."""
    del graph.metadata_props[:]
    del graph.graph.metadata_props[:]
    for node in graph.graph.node:
        del node.metadata_props[:]
        node.ClearField("doc_string")
    for value in (*graph.graph.value_info, *graph.graph.input, *graph.graph.output):
        del value.metadata_props[:]
    for tensor in graph.graph.initializer:
        del tensor.metadata_props[:]
        tensor.ClearField("doc_string")
    return graph


def save(graph: onnx.ModelProto, file: Path) -> None:
    """Write the graph, with all its larger tensors in ``weights.bin`` beside it."""
    onnx.save_model(
        graph,
        str(file),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=WEIGHTS,
        size_threshold=1024,
    )
    (file.parent / WEIGHTS).chmod(0o644)  # onnx makes it readable by its owner alone
