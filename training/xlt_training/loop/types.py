"""The values that the stages of training hand to each other; read without torch, as examples are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text, or pair of texts. ``id`` is shared by translations of one example.

    ``source`` is the counterpart in the source language of a translated example, ``round_trip``
    that counterpart translated there and back, ``copy`` other words for the same in the same language;
    each has as many texts as the example has. ``read_as``: its texts as the data have them, where a method
    has put others in their place.
    """

    text: str
    label: str
    language: str
    pair: str | None = None
    id: str = ""
    source: tuple[str, ...] = ()
    round_trip: tuple[str, ...] = ()
    copy: tuple[str, ...] = ()
    read_as: tuple[str, ...] = ()

    def texts(self) -> tuple[str, ...]:
        return (self.text,) if self.pair is None else (self.text, self.pair)

    def with_texts(self, texts: Sequence[str]) -> Example:
        """The same example with other words."""
        pair = texts[1] if len(texts) > 1 else None
        return replace(self, text=texts[0], pair=pair, read_as=self.read_as or self.texts())


@dataclass
class Batch:
    """input_ids, attention_mask, token_type_ids, words: [batch, length]; labels: [batch].

    ``words`` numbers the whitespace-separated words of a row from 0, the second text's after the
    first's; -1 for special tokens and padding. ``examples`` are those the tensors were made of.
    ``embeddings`` [batch, length, width] stands in the place of E(x) where a method has changed it;
    ``shift`` [batch, width] is added to the encoder's output at the first token. Both belong to
    these ids: a batch of other ids starts without them.
    """

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    token_type_ids: Tensor | None = None
    words: Tensor | None = None
    embeddings: Tensor | None = None
    shift: Tensor | None = None
    examples: list[Example] = field(default_factory=list)

    def inputs(self) -> dict[str, Tensor]:
        """What a transformers model takes."""
        given = {"input_ids": self.input_ids, "attention_mask": self.attention_mask}
        if self.token_type_ids is not None:
            given["token_type_ids"] = self.token_type_ids
        return given

    def to(self, device: torch.device) -> Batch:
        moved = {
            f.name: value.to(device)
            for f in fields(self)
            if hasattr(value := getattr(self, f.name), "to")
        }
        return replace(self, **moved)


@dataclass
class Output:
    """logits [batch, labels]; last [batch, length, width]; states: E(x) and each layer's output; attentions:
    each layer's maps [batch, heads, length, length]. The last two only where asked for."""

    logits: Tensor
    last: Tensor
    attention_mask: Tensor
    states: tuple[Tensor, ...] = ()
    attentions: tuple[Tensor, ...] = ()


@dataclass
class Mixed:
    """The outputs of both streams of a pair, the ratio λ [batch], and what it hangs on: the entropy of
    the streams' likeness and their agreement, both [batch]."""

    target: Output
    source: Output
    ratio: Tensor
    entropy: Tensor
    agreement: Tensor


@dataclass
class Loss:
    """``total`` is what backward runs on; ``terms`` are its parts by name, ``figures`` other numbers
    worth logging; ``outputs`` the model's outputs it was computed from, one for each stream."""

    total: Tensor
    terms: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
