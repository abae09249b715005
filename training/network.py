"""The classifier that methods work on: a transformers model with places for what they add.

Everything goes through two calls: ``embed`` gives E(x), the output of the embeddings module (words,
positions, types, LayerNorm), and ``forward`` runs the rest, from the ids or from an E(x) that a
method has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from training.collate import Encoding
from training.types import Batch, Example


@dataclass
class Output:
    """logits [batch, labels]; last [batch, length, width]; states: E(x) and each layer's output;
    attentions: each layer's maps [batch, heads, length, length]. The last two only where asked for."""

    logits: Tensor
    last: Tensor
    attention_mask: Tensor
    states: tuple[Tensor, ...] = ()
    attentions: tuple[Tensor, ...] = ()


Rewrite = Callable[["Classifier", Batch, dict[str, Tensor]], dict[str, Tensor]]


class Classifier(nn.Module):
    """``slots`` are served and exported with the model; ``train_only`` is dropped when it is saved.

    ``before``: functions that rewrite the inputs of the encoder (soft prompts); ``after``: names of
    slots that the last hidden states pass through on their way to the head (norms).
    """

    def __init__(
        self, hf: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, max_length: int
    ) -> None:
        super().__init__()
        self.hf = hf
        self.slots = nn.ModuleDict()
        self.train_only = nn.ModuleDict()
        self.before: list[Rewrite] = []
        self.after: list[str] = []
        self.tokenizer = tokenizer
        self.encoding = Encoding(
            tokenizer,
            [hf.config.id2label[i] for i in range(hf.config.num_labels)],
            max_length,
            reads_type_ids(hf),
        )

    @property
    def base(self) -> PreTrainedModel:
        """The encoder without the head."""
        base: PreTrainedModel = self.hf.base_model
        return base

    @property
    def labels(self) -> list[str]:
        return self.encoding.labels

    @property
    def device(self) -> torch.device:
        return self.hf.device

    def batch(self, examples: Sequence[Example], words: bool = False) -> Batch:
        """Examples as tensors on this model's device."""
        return self.encoding.batch(examples, words).to(self.device)

    def embed(self, batch: Batch) -> Tensor:
        """E(x) [batch, length, width], or what a method has put in its place.

        Equals ``hidden_states[0]`` in eval mode.
        """
        if batch.embeddings is not None:
            return batch.embeddings
        inputs = {"input_ids": batch.input_ids}
        if batch.token_type_ids is not None:
            inputs["token_type_ids"] = batch.token_type_ids
        embedded: Tensor = self.base.embeddings(**inputs)
        return embedded

    def forward(self, batch: Batch, *, states: bool = False, attentions: bool = False) -> Output:
        """From the ids, or from ``batch.embeddings`` where a method has set them."""
        inputs = batch.inputs()
        for rewrite in self.before:
            inputs = rewrite(self, batch, inputs)
        with _replaced_output(self.base.embeddings, batch.embeddings):
            out = self.base(
                **inputs,
                output_hidden_states=states,
                output_attentions=attentions,
                return_dict=True,
            )
        return Output(
            logits=self.classify(out.last_hidden_state, inputs["attention_mask"], batch.shift),
            last=out.last_hidden_state,
            attention_mask=inputs["attention_mask"],
            states=tuple(out.hidden_states) if states else (),
            attentions=tuple(out.attentions) if attentions else (),
        )

    def classify(self, last: Tensor, attention_mask: Tensor, shift: Tensor | None = None) -> Tensor:
        """The encoder's output to logits, through the slots in ``after``."""
        for name in self.after:
            last = self.slots[name](last, attention_mask)
        if shift is not None:
            last = torch.cat([last[:, :1] + shift.unsqueeze(1), last[:, 1:]], dim=1)
        return self.head(last)

    def head(self, last: Tensor) -> Tensor:
        """Last hidden states to logits, as transformers builds it: pooler, dropout and linear for
        BERT, dense, tanh and linear for XLM-R; both read the first token."""
        if self.base.config.model_type == "bert":
            pooled = self.base.pooler(last)
            logits: Tensor = self.hf.classifier(self.hf.dropout(pooled))
        else:
            logits = self.hf.classifier(last)
        return logits


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


def reads_type_ids(hf: PreTrainedModel) -> bool:
    """Whether the two texts of a pair are told apart by token_type_ids (BERT), not by </s> alone."""
    return getattr(hf.config, "type_vocab_size", 0) > 1


def longest(hf: PreTrainedModel) -> int:
    """Tokens that the position table has room for (XLM-R counts from padding_idx + 1)."""
    positions = int(hf.config.max_position_embeddings)
    return positions - 2 if hf.config.model_type in ("xlm-roberta", "roberta") else positions
