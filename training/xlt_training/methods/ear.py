"""EAR: Embedding-Push, Attention-Pull (Ding 2022)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from xlt_serve.errors import UsageError
from xlt_training.loop.method import (
    Context,
    Method,
    Objective,
    TrainedSynonyms,
    Trait,
    least_problems,
)
from xlt_training.loop.network import Classifier
from xlt_training.loop.tensors import mean_pool, membership
from xlt_training.loop.types import Batch, Loss
from xlt_training.loop.words import load_synonyms, redraw, refuse_unspaced


def push(left: Tensor, left_mask: Tensor, right: Tensor, right_mask: Tensor) -> Tensor:
    """EPT: minus the squared distance of mean-pooled embeddings, a mean over width and batch."""
    return -(mean_pool(left, left_mask) - mean_pool(right, right_mask)).square().mean()


def word_attention(maps: Tensor, words: Tensor, count: int) -> Tensor:
    """[batch, heads, length, length] → [batch, heads, count, count] between words: the mean over the
    query word's tokens, the sum over the key word's, so that rows still sum to one."""
    inside = membership(words, count).unsqueeze(1)
    size = inside.sum(-1, keepdim=True).clamp(min=1)
    return (inside / size) @ maps @ inside.transpose(-1, -2)


def pull(
    left: Tensor, left_words: Tensor, right: Tensor, right_words: Tensor, reduction: str = "sum"
) -> Tensor:
    """APT: squared Frobenius distance of word-level attention maps, a mean over batch and heads.

    Word positions that both have. ``reduction`` "mean" divides by the number of their cells.
    """
    count = int(max(left_words.max(), right_words.max())) + 1
    both = membership(left_words, count).any(-1) & membership(right_words, count).any(-1)
    cells = (both.unsqueeze(1) & both.unsqueeze(2)).unsqueeze(1)
    difference = word_attention(left, left_words, count) - word_attention(right, right_words, count)
    squares = (difference.square() * cells).sum((-1, -2))
    if reduction == "mean":
        squares = squares / cells.sum((-1, -2)).clamp(min=1)
    return squares.mean()


SPECIALS = 5
"""More special tokens than a pair of texts has."""


def words_and_specials(batch: Batch) -> Tensor:
    """Word numbers in which every special token is a word of its own: those come first, in their
    order, then the words; -1 for padding."""
    assert batch.words is not None
    special = batch.attention_mask.bool() & (batch.words < 0)
    numbers = torch.where(batch.words >= 0, batch.words + SPECIALS, batch.words)
    return torch.where(special, special.cumsum(dim=1) - 1, numbers)


@dataclass
class EAR(Method):
    """``loss(x) + loss(xᵃ) + alpha · EPT + beta · APT``, xᵃ a synonym copy of x.

    Variants: ``push`` "gaussian" (NT: noise instead of synonyms), "none"; ``pull`` "sentence" (SRPT:
    squared distance of mean-pooled middle-layer states), "none". ``layer`` 0: the middle one. Data:
    a synonym table. Composes with synonyms, isotropy, anchors; comes before what changes embeddings.
    """

    traits = frozenset(
        {
            Trait.CHANGES_IDS,
            Trait.SECOND_STREAM,
            Trait.SUMS_STREAMS,
            Trait.COMPARES_TOKENS,
            Trait.SOURCE_WORDS,
        }
    )

    alpha: float = 1.0  # weight of the push
    beta: float = 0.1  # weight of the pull
    layer: int = 0  # whose attention or states are pulled; 0: the middle one
    push: Literal["synonym", "gaussian", "none"] = "synonym"  # how the copy differs; "none": no EPT
    pull: Literal["attention", "sentence", "none"] = "attention"  # what is held together
    reduction: Literal["sum", "mean"] = "sum"  # of the pull, over cells of the maps
    sigma: float = 0.1  # deviation of the noise, of push = "gaussian"
    table: str = ""  # file of synonyms; "": the one in the lexicons' folder
    dictionary_scale: float = 1.0  # share of the table's words that are used
    draws: Literal["neighbours", "groups"] = "neighbours"  # "groups": what serving certifies

    def problems(self) -> list[str]:
        return least_problems(self, 0, "layer", "sigma")

    def prepare(self, model: Classifier, batches: Sequence[Batch], context: Context) -> None:
        refuse_unspaced("ear", context.source)
        self._source = context.source
        if self.push != "gaussian":
            self._table = load_synonyms(self.table, context, self.dictionary_scale, self.draws)
        depth = model.depth
        self._layer = self.layer or max(1, depth // 2)
        if self._layer > depth:
            raise UsageError(f"ear.layer = {self.layer}", f"the encoder has {depth} layers")
        if self.pull == "attention":
            model.hf.set_attn_implementation("eager")  # the fused kinds keep their maps
            # Maps are read after dropout: with it, even a text and itself would differ.
            model.layers("ear")[self._layer - 1].attention.self.dropout.p = 0.0

    def copy(self, model: Classifier, plain: Batch) -> Batch:
        """xᵃ: the same examples with synonyms, or with noise on E(x)."""
        if self.push == "gaussian":
            embedded = model.embed(plain)
            noise = self.sigma * torch.randn_like(embedded) * model.mask(plain).unsqueeze(-1)
            return replace(plain, embeddings=embedded + noise)
        generator = random.Random(int(torch.randint(2**62, ())))
        redrawn = [
            example.with_texts([redraw(text, self._table, generator) for text in example.texts()])
            if example.language == self._source
            else example
            for example in plain.examples
        ]
        return model.batch(redrawn, words=True)

    def objective(self, model: Classifier, batch: Batch, inner: Objective) -> Loss:
        plain = model.batch(batch.examples, words=True)
        other = self.copy(model, plain)
        with model.recording(states=True, attentions=self.pull == "attention"):
            first, second = inner(model, plain), inner(model, other)
        left, right = first.outputs[-1], second.outputs[-1]
        total = first.total + second.total
        terms = first.terms | {f"copy/{name}": value for name, value in second.terms.items()}
        masks = left.attention_mask, right.attention_mask
        if self.push != "none":
            term = self.alpha * push(left.states[0], masks[0], right.states[0], masks[1])
            total, terms = total + term, terms | {"push": term}
        if self.pull == "attention":
            term = self.beta * pull(
                left.attentions[self._layer - 1],
                words_and_specials(plain),
                right.attentions[self._layer - 1],
                words_and_specials(other),
                self.reduction,
            )
            total, terms = total + term, terms | {"pull": term}
        elif self.pull == "sentence":
            here = mean_pool(left.states[self._layer], masks[0])
            there = mean_pool(right.states[self._layer], masks[1])
            term = self.beta * (here - there).square().sum(-1).mean()
            total, terms = total + term, terms | {"pull": term}
        return Loss(total, terms, first.figures, first.outputs + second.outputs)

    def synonyms(self) -> TrainedSynonyms | None:
        if self.push != "synonym":
            return None
        return TrainedSynonyms(self.table, self.draws, self.dictionary_scale)
