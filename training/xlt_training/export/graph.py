"""A torch classifier as ONNX graphs: plain, perturbed (noise added), paired (two streams mixed)."""

from __future__ import annotations

import ast
import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from xlt_training.loop.architectures import OPEN_LAYERS
from xlt_training.loop.network import Classifier, longest
from xlt_training.loop.types import Batch
from xlt_training.methods.xmixup import Gate, mix

SCOPES = "pkg.torch.onnx.name_scopes"
OPSET = 23  # has the Attention operator, which onnxruntime runs fused and TensorRT ≥ 10.14 parses

# Sizes of 0 or 1 would be taken for constants: trace with these.
_TEXTS, _LENGTH, _DRAWS = 2, 8, 3


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

    def __init__(self, model: Classifier, layer: int) -> None:
        super().__init__()
        self.model, self.layer = model, layer

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        source_ids: Tensor,
        source_mask: Tensor,
        token_type_ids: Tensor | None = None,
        source_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        gate: Any = self.model.slots["mixup"]
        assert isinstance(gate, Gate)
        target = _batch(input_ids, attention_mask, token_type_ids)
        source = _batch(source_ids, source_mask, source_type_ids)
        out = mix(self.model, target, source, self.layer, gate)
        return out.target.logits, out.source.logits, out.ratio


def _batch(ids: Tensor, mask: Tensor, types: Tensor | None) -> Batch:
    return Batch(input_ids=ids, attention_mask=mask, labels=mask, token_type_ids=types)


def input_names(model: Classifier) -> tuple[str, ...]:
    names = ("input_ids", "attention_mask")
    return (*names, "token_type_ids") if model.encoding.type_ids else names


def plain(model: Classifier, vector: nn.Module | None = None) -> onnx.ModelProto:
    """input_ids, attention_mask (, token_type_ids) [batch, length] → logits [batch, labels], and with
    ``vector`` (Identity: as it is) also vector [batch, width]."""
    ids, mask, types = _example_text()
    text = {0: torch.export.Dim("batch"), 1: _length(model, "length")}
    names = input_names(model)
    example = (ids, mask, types)[: len(names)]
    with first_token_only(model):
        outputs = ["logits"] if vector is None else ["logits", "vector"]
        return _export(_Plain(model, vector), example, names, [text] * len(names), outputs)


def perturbed(model: Classifier, at: str) -> onnx.ModelProto:
    """input_ids, attention_mask [texts, length], row [draws], noise [draws, length, width] (or [draws,
    width] at the encoder's output) → logits [draws, labels]."""
    ids, mask, types = _example_text()
    row = torch.tensor([0, 1, 1])
    extra = longest(model.hf) - model.room  # soft prompts are positions too
    length, draws = _length(model, "length"), torch.export.Dim("draws")
    text = {0: torch.export.Dim("texts"), 1: length}
    if at == "encoder":
        noise, noise_dims = torch.zeros(_DRAWS, model.width), {0: draws}
    else:
        noise = torch.zeros(_DRAWS, _LENGTH + extra, model.width)
        noise_dims = {0: draws, 1: length + extra if extra else length}
    example: list[Tensor] = [ids, mask, row, noise]
    names = ["input_ids", "attention_mask", "row", "noise"]
    dims: list[dict[int, Any]] = [text, text, {0: draws}, noise_dims]
    if model.encoding.type_ids:
        example, names, dims = [*example, types], [*names, "token_type_ids"], [*dims, text]
    with first_token_only(model):
        return _export(_Perturbed(model, at), example, names, dims, ["logits"])


def paired(model: Classifier, layer: int) -> onnx.ModelProto:
    """Target and source ids and masks → target_logits, source_logits [batch, labels], ratio [batch]."""
    ids, mask, types = _example_text()
    source = torch.full((_TEXTS, _LENGTH + 3), 3)
    source_mask = torch.ones_like(source)
    source_mask[0, 6:] = 0
    batch = torch.export.Dim("batch")
    target_dims = {0: batch, 1: _length(model, "length")}
    source_dims = {0: batch, 1: _length(model, "source_length")}
    example = [ids, mask, source, source_mask]
    names = ["input_ids", "attention_mask", "source_ids", "source_mask"]
    dims = [target_dims, target_dims, source_dims, source_dims]
    if model.encoding.type_ids:
        example += [types, torch.zeros_like(source)]
        names += ["token_type_ids", "source_type_ids"]
        dims += [target_dims, source_dims]
    outputs = ["target_logits", "source_logits", "ratio"]
    # At the last layer, the cross-attention would read all tokens behind the attention.
    with first_token_only(model) if layer < model.depth else contextlib.nullcontext():
        return _export(_Paired(model, layer), example, names, dims, outputs)


@contextmanager
def first_token_only(model: Classifier) -> Iterator[None]:
    """Within it, the last layer computes what follows its attention for the first token alone: the
    head reads no other. Exact, and three quarters of that layer's products less.

    Soft prompts count positions behind the encoder, and other families have other layers: they run
    as they are.
    """
    if model.hf.config.model_type not in OPEN_LAYERS or "prompt" in model.slots:
        yield
        return
    last: Any = model.layers("export")[-1]
    output = last.attention.output
    handle = output.register_forward_pre_hook(lambda _, given: tuple(x[:, :1] for x in given))
    try:
        yield
    finally:
        handle.remove()


def _example_text() -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.full((_TEXTS, _LENGTH), 3)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return ids, mask, torch.zeros_like(ids)


def _length(model: Classifier, name: str) -> Any:
    return torch.export.Dim(name, max=model.room)


def _export(
    module: nn.Module,
    example: Sequence[Tensor],
    names: Sequence[str],
    dims: Sequence[dict[int, Any]],
    outputs: list[str],
) -> onnx.ModelProto:
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
                kwargs=dict(zip(names, example, strict=True)),
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=dict(zip(names, dims, strict=True)),
                input_names=list(names),
                output_names=outputs,
                verbose=False,
            )
    finally:
        registration.setLevel(level)
    assert program is not None
    return without_traces(program.model_proto)


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
