"""The classifier that methods work on: a transformers model with places for what they add.

Everything goes through two calls: ``embed`` gives E(x), the output of the embeddings module (words,
positions, types, LayerNorm), and ``forward`` runs the rest, from the ids or from an E(x) that a
method has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from xlt_training.loop import architectures
from xlt_training.loop.collate import Encoding
from xlt_training.loop.types import Batch, Example, Output


class SoftPrompts(Protocol):
    """The slot ``prompt``: trained vectors between the tokens, [length, width]."""

    vectors: Tensor

    @property
    def length(self) -> int: ...

    def insert(self, rows: Tensor, filling: Tensor) -> Tensor: ...

    def remove(self, states: Tensor) -> Tensor: ...


class Classifier(nn.Module):
    """``slots`` are served and exported with the model; ``after`` names those that the encoder's
    output passes through on its way to the head (norms), ``after_pooler`` those that BERT's pooled
    output does."""

    def __init__(
        self, hf: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, max_length: int
    ) -> None:
        super().__init__()
        self.hf = hf
        self.slots = nn.ModuleDict()
        self.after: list[str] = []
        self.after_pooler: list[str] = []
        self.tokenizer = tokenizer
        names: Any = hf.config.id2label  # transformers makes its keys numbers
        labels = [names[number] for number in sorted(names)]
        self.encoding = Encoding(tokenizer, labels, max_length, reads_type_ids(hf))
        self.step = 0  # optimiser steps so far, for schedules
        self.class_weights: Tensor | None = None  # [labels], of the loss
        self.fresh: frozenset[str] = frozenset()  # parameters that began at random, by name
        self._states = self._attentions = False

    @property
    def base(self) -> PreTrainedModel:
        """The encoder without the head."""
        return cast(PreTrainedModel, self.hf.base_model)

    @property
    def embeddings(self) -> nn.Module:
        """The module that gives E(x)."""
        return architectures.embeddings(self.hf)

    @property
    def pooler(self) -> nn.Module | None:
        """BERT's, which stands between the encoder's output and the head."""
        return cast("nn.Module | None", getattr(self.base, "pooler", None))

    @property
    def prompt(self) -> SoftPrompts | None:
        if "prompt" not in self.slots:
            return None
        return cast(SoftPrompts, self.slots["prompt"])

    @property
    def width(self) -> int:
        return architectures.width(self.hf)

    @property
    def embedded_width(self) -> int:
        """Of E(x)."""
        return architectures.embedded_width(self.hf)

    @property
    def depth(self) -> int:
        return architectures.depth(self.hf)

    def layers(self, who: str) -> Sequence[architectures.EncoderLayer]:
        """The encoder's layers, for ``who`` works inside them; refused where they are of another
        make."""
        return architectures.layers(self.hf, who)

    @property
    def labels(self) -> list[str]:
        return self.encoding.labels

    @property
    def device(self) -> torch.device:
        return self.hf.device

    @property
    def room(self) -> int:
        """Tokens that a text may have at most: the position table less the soft prompts."""
        return architectures.longest(self.hf.config) - (
            0 if self.prompt is None else self.prompt.length
        )

    def batch(self, examples: Sequence[Example], words: bool = False) -> Batch:
        """Examples as tensors on this model's device."""
        return self.encoding.batch(examples, words).to(self.device)

    def embed(self, batch: Batch) -> Tensor:
        """E(x) [batch, length, width], or what a method has put in its place.

        Equals ``hidden_states[0]`` in eval mode. Soft prompts count as positions.
        """
        if batch.embeddings is not None:
            return batch.embeddings
        module = self.embeddings
        embedded: Tensor = module(**architectures.embedding_inputs(module, self._inputs(batch)))
        return embedded

    def mask(self, batch: Batch) -> Tensor:
        """1 for the real positions of E(x), 0 for padding."""
        return self._inputs(batch)["attention_mask"]

    def zero_shift(self, batch: Batch) -> Tensor:
        """No shift of the encoder's output at the first token [batch, width], or the present one."""
        if batch.shift is not None:
            return batch.shift
        return torch.zeros(len(batch.input_ids), self.width, device=self.device)

    def forward(self, batch: Batch, *, states: bool = False, attentions: bool = False) -> Output:
        """From the ids, or from ``batch.embeddings`` where a method has set them."""
        states, attentions = states or self._states, attentions or self._attentions
        last, out = self.encode(batch, output_hidden_states=states, output_attentions=attentions)
        return self.finish(
            batch,
            last,
            states=tuple(out.hidden_states) if states else (),
            attentions=tuple(out.attentions) if attentions else (),
        )

    def encode(self, batch: Batch, **more: bool) -> tuple[Tensor, Any]:
        """The encoder's output [batch, length, width], and all that transformers says of it."""
        with _replaced_output(self.embeddings, batch.embeddings):
            inputs = architectures.encoder_inputs(self.hf, self._inputs(batch))
            out = self.base(**inputs, return_dict=True, **more)
        last: Tensor = out.last_hidden_state
        if self.prompt is not None:
            last = self.prompt.remove(last)
        return last, out

    def finish(self, batch: Batch, last: Tensor, **more: Any) -> Output:
        """From the encoder's output to the logits."""
        read = last
        for name in self.after:
            read = self.slots[name](read, batch.attention_mask)
        if batch.shift is not None:
            read = torch.cat([read[:, :1] + batch.shift.unsqueeze(1), read[:, 1:]], dim=1)
        head = architectures.HEADS[self.hf.config.model_type]
        norms = [self.slots[name] for name in self.after_pooler]
        with _passed_on(self.pooler, norms, batch.attention_mask):
            logits = head(self.hf, read, batch.attention_mask)
        return Output(logits, last, batch.attention_mask, **more)

    @contextmanager
    def recording(self, states: bool = False, attentions: bool = False) -> Iterator[None]:
        """Within it, every output carries its layers' states, or attention maps: whoever calls
        forward, a method outside it finds them in the loss's outputs, without a second pass."""
        before = self._states, self._attentions
        self._states, self._attentions = before[0] or states, before[1] or attentions
        try:
            yield
        finally:
            self._states, self._attentions = before

    def encoder_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The pretrained encoder's parameters by name. BERT's pooler counts as head: encoders are
        often published without it, and then it begins at random."""
        for name, parameter in self.base.named_parameters():
            if not name.startswith("pooler."):
                yield name, parameter

    def pretrained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Those of the encoder, and of its pooler where it came with one."""
        for name, parameter in self.base.named_parameters():
            if not name.startswith("pooler.") or name not in self.fresh:
                yield name, parameter

    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        inputs, prompt = batch.inputs(), self.prompt
        if prompt is None:
            return inputs
        words = self.base.get_input_embeddings()(inputs.pop("input_ids"))
        one, zero = words.new_ones(prompt.length), words.new_zeros(prompt.length)
        inputs["inputs_embeds"] = prompt.insert(words, prompt.vectors)
        inputs["attention_mask"] = prompt.insert(inputs["attention_mask"], one)
        if "token_type_ids" in inputs:
            inputs["token_type_ids"] = prompt.insert(inputs["token_type_ids"], zero)
        return inputs


@contextmanager
def _replaced_output(module: nn.Module, value: Tensor | None) -> Iterator[None]:
    """Within it, ``module`` gives ``value`` whatever it computes: works for every architecture."""
    if value is None:
        yield
        return
    handle = module.register_forward_hook(lambda *_: value)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _passed_on(
    module: nn.Module | None, norms: Sequence[nn.Module], mask: Tensor
) -> Iterator[None]:
    """Within it, what ``module`` gives passes through ``norms``. Not for good: the encoder calls its
    pooler too, for an output that nobody reads."""
    if module is None or not norms:
        yield
        return

    def hook(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        for norm in norms:
            output = norm(output, mask)
        return output

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def reads_type_ids(hf: PreTrainedModel) -> bool:
    """Whether the two texts of a pair are told apart by token_type_ids (BERT), not by </s> alone."""
    return (getattr(hf.config, "type_vocab_size", 0) or 0) > 1
