"""A torch classifier as ONNX graphs: plain, perturbed (noise added), paired (two streams mixed)."""

from __future__ import annotations

import ast
import contextlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from xlt_serve.runtime import shapes
from xlt_serve.runtime.graph_io import GraphIO, PairedIO, PerturbedIO, PlainIO
from xlt_training.exporting.kernels import without_equal
from xlt_training.loop.architectures import OPEN_LAYERS, longest
from xlt_training.loop.method import Pairing
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch

SCOPES = "pkg.torch.onnx.name_scopes"
OPSET = 23  # has the Attention operator, which onnxruntime runs fused and TensorRT ≥ 10.14 parses

# Sizes of 0 or 1 would be taken for constants: trace with these.
EXAMPLE = {"batch": 2, "texts": 2, "draws": 3, "length": 8, "source_length": 11}


class _Plain(nn.Module):
    """ids in, logits out: what a graph computes, without our classes. With ``vector``, also what it
    makes of the encoder's output at the first token, which the head reads."""

    def __init__(self, model: Classifier, vector: nn.Module | None = None) -> None:
        super().__init__()
        self.model, self.vector = model, vector

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        batch = _batch(input_ids, attention_mask, token_type_ids)
        last, _ = self.model.encode(batch)
        logits: Tensor = self.model.finish(batch, last).logits
        return logits if self.vector is None else (logits, self.vector(last[:, 0]))


class _Perturbed(nn.Module):
    """Draw n is text row[n] with noise[n] on E(x), or on the encoder's output at its first token.

    Each text is embedded once, in the second case also encoded once, however many draws it has.
    """

    def __init__(self, model: Classifier, at: str) -> None:
        super().__init__()
        self.model, self.at = model, at

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        row: Tensor,
        noise: Tensor,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        texts = _batch(input_ids, attention_mask, token_type_ids)
        types = None if token_type_ids is None else token_type_ids[row]
        draws = _batch(input_ids[row], attention_mask[row], types)
        if self.at == "encoder":
            last, _ = self.model.encode(texts)
            return self.model.finish(replace(draws, shift=noise), last[row]).logits
        embedded = self.model.embed(texts)
        logits: Tensor = self.model(replace(draws, embeddings=embedded[row] + noise)).logits
        return logits


class _Paired(nn.Module):
    """A text and its translation, mixed: both streams' logits and the ratio λ."""

    def __init__(self, model: Classifier, pairing: Pairing) -> None:
        super().__init__()
        self.model, self.pairing = model, pairing

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        source_ids: Tensor,
        source_mask: Tensor,
        token_type_ids: Tensor | None = None,
        source_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        target = _batch(input_ids, attention_mask, token_type_ids)
        source = _batch(source_ids, source_mask, source_type_ids)
        out = self.pairing.mix(self.model, target, source)
        return out.target.logits, out.source.logits, out.ratio, out.agreement


def _batch(ids: Tensor, mask: Tensor, types: Tensor | None) -> Batch:
    return Batch(input_ids=ids, attention_mask=mask, labels=mask, token_type_ids=types)


def plain(model: Classifier, vector: nn.Module | None = None) -> onnx.ModelProto:
    """Texts → logits [batch, labels], and with ``vector`` (Identity: as it is) also vector
    [batch, width]."""
    io = PlainIO(PlainIO.inputs(model.encoding.type_ids), model.tokenizer.pad_token_id)
    outputs = [*io.logits, *([] if vector is None else ["vector"])]
    with first_token_only(model):
        return _export(_Plain(model, vector), model, io, outputs)


def perturbed(model: Classifier, at: str) -> onnx.ModelProto:
    """Texts, the row of each draw and its noise → logits [draws, labels]."""
    prompts = longest(model.hf.config) - model.room  # soft prompts are positions too
    extra = None if at == "encoder" else prompts
    width = model.width if at == "encoder" else model.embedded_width
    inputs = PerturbedIO.inputs(model.encoding.type_ids, width, extra)
    io = PerturbedIO(inputs, model.tokenizer.pad_token_id)
    with first_token_only(model):
        return _export(_Perturbed(model, at), model, io, list(io.logits))


def paired(model: Classifier, pairing: Pairing) -> onnx.ModelProto:
    """Texts and their translations → target_logits, source_logits [batch, labels], ratio and
    agreement [batch]."""
    io = PairedIO(PairedIO.inputs(model.encoding.type_ids), model.tokenizer.pad_token_id)
    # At the last layer, the cross-attention would read all tokens behind the attention.
    with first_token_only(model) if pairing.layer < model.depth else contextlib.nullcontext():
        return _export(_Paired(model, pairing), model, io, [*io.logits, "ratio", "agreement"])


@contextmanager
def first_token_only(model: Classifier) -> Iterator[None]:
    """Within it, the last layer computes what follows its attention for the first token alone: the
    head reads no other. Exact, and three quarters of that layer's products less.

    Soft prompts count positions behind the encoder, and other families have other layers: they run
    as they are.
    """
    if model.hf.config.model_type not in OPEN_LAYERS or model.prompt is not None:
        yield
        return
    last: Any = model.layers("export")[-1]
    output = last.attention.output
    handle = output.register_forward_pre_hook(lambda _, given: tuple(x[:, :1] for x in given))
    try:
        yield
    finally:
        handle.remove()


def _dynamic(model: Classifier, io: GraphIO[Any]) -> dict[str, dict[int, Any]]:
    """The named dimensions of each input, for the exporter."""
    named = {
        name: torch.export.Dim(name, max=model.room if name in shapes.LENGTHS else None)
        for name in shapes.names(io.dims)
    }
    out: dict[str, dict[int, Any]] = {}
    for name, dims in io.dims.items():
        parts = enumerate(shapes.split(dim) for dim in dims)
        out[name] = {
            axis: named[dim] + more if more else named[dim] for axis, (dim, more) in parts if dim
        }
    return out


def _export(
    module: nn.Module, model: Classifier, io: GraphIO[Any], outputs: list[str]
) -> onnx.ModelProto:
    example = io.example(EXAMPLE, model.hf.config.vocab_size, ragged=True)
    # The exporter talks about its own deprecations and about packages that we don't use.
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module.eval(),
                # Missing optional inputs in the middle would shift those behind them.
                kwargs={name: torch.from_numpy(example[name]) for name in io.dims},
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=_dynamic(model, io),
                input_names=list(io.dims),
                output_names=outputs,
                verbose=False,
            )
    finally:
        registration.setLevel(level)
    assert program is not None
    return without_equal(without_traces(program.model_proto))


def without_traces(graph: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph without the Python stack traces and paths that the exporter writes into it.

    What stays of them is the module that a node comes from, in its name.
    """
    del graph.metadata_props[:]
    del graph.graph.metadata_props[:]
    for number, node in enumerate(graph.graph.node):
        scopes = {entry.key: entry.value for entry in node.metadata_props}.get(SCOPES, "[]")
        module = next((scope for scope in reversed(ast.literal_eval(scopes)) if "." in scope), "")
        node.name = f"{module.removeprefix('model.')}/{node.op_type}_{number}".lstrip("/")
        del node.metadata_props[:]
        node.ClearField("doc_string")
    for value in (*graph.graph.value_info, *graph.graph.input, *graph.graph.output):
        del value.metadata_props[:]
    for tensor in graph.graph.initializer:
        del tensor.metadata_props[:]
        tensor.ClearField("doc_string")
    return graph
