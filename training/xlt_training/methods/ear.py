"""EAR: Embedding-Push, Attention-Pull (Ding 2022)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor, nn

from xlt_serve.errors import DataError, UsageError
from xlt_serve.files.rows import read_rows
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
from xlt_training.loop.types import Batch, Example, Loss
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


def pull_sentences(left: Tensor, left_mask: Tensor, right: Tensor, right_mask: Tensor) -> Tensor:
    """SRPT: the squared distance of mean-pooled states, a mean over width and batch."""
    return (mean_pool(left, left_mask) - mean_pool(right, right_mask)).square().mean()


@contextmanager
def still(module: nn.Module) -> Iterator[None]:
    """Within it, a module has no dropout: a quarter of the distance of two texts would be its noise."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def added(module: nn.Module, noise: Tensor | None) -> Iterator[None]:
    """Within it, ``noise`` is added to what ``module`` gives."""
    if noise is None:
        yield
        return
    handle = module.register_forward_hook(lambda _module, _inputs, output: output + noise)
    try:
        yield
    finally:
        handle.remove()


def read_pairs(file: Path, pair: bool) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
    """The texts x → their copies xᵃ, of a file with the columns text and copy, and pair and pair_copy
    for pairs of texts; a text may have several rows."""
    columns = ("text", "copy", "pair", "pair_copy") if pair else ("text", "copy")
    rows = read_rows(file)
    if rows and (missing := [column for column in columns if column not in rows[0]]):
        raise DataError(file, f"has no column {missing[0]!r}; it has: {', '.join(rows[0])}")
    out: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for row in rows:
        texts = tuple(row[column] for column in columns)
        out.setdefault(texts[0::2], []).append(texts[1::2])
    return out


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

    ``copies``: of each example in an epoch, each with its own xᵃ (papers: 3 for XNLI, 10 for PAWS-X).
    Variants: ``push`` "gaussian" (NT: noise instead of synonyms; ``sigma`` in standard deviations of
    the word vectors, to which it is added), "none"; ``pull`` "sentence" (SRPT: squared distance of
    mean-pooled middle-layer states), "none". ``layer`` 0: the middle one. Data: a synonym table, or
    ``pairs``, a file of texts with ready copies (columns text, copy; for pairs also pair, pair_copy).
    Composes with synonyms, isotropy, anchors; comes before what changes embeddings.
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
    copies: int = 1  # of each example, each with a push of its own
    pairs: str = ""  # file of ready pairs (x, xᵃ), instead of synonyms

    def problems(self) -> list[str]:
        out = least_problems(self, 0, "layer", "sigma") + least_problems(self, 1, "copies")
        if self.pairs and self.push == "gaussian":
            out.append("pairs and push = 'gaussian' each make the copy: leave one out")
        if self.pairs and self.copies > 1:
            out.append("copies and pairs: a text has as many copies as it has rows in the file")
        return out

    def augment(self, examples: Sequence[Example], context: Context) -> Iterable[Example]:
        """Each source example once for each of its copies."""
        ready = read_pairs(Path(self.pairs), examples[0].pair is not None) if self.pairs else {}
        if self.pairs:
            self._refuse_missing(examples, context.source, ready)
        for example in examples:
            if example.language != context.source:
                yield example
            elif self.pairs:
                for texts in ready[example.texts()]:
                    yield replace(example, copy=texts)
            else:
                for _ in range(self.copies):
                    yield example

    def _refuse_missing(
        self,
        examples: Sequence[Example],
        source: str,
        ready: dict[tuple[str, ...], list[tuple[str, ...]]],
    ) -> None:
        mine = [example for example in examples if example.language == source]
        if missing := [example for example in mine if example.texts() not in ready]:
            raise DataError(
                self.pairs,
                f"has no copy of {len(missing)} of {len(mine)} train texts, as {missing[0].text!r}",
                "write a row for each, its text as in the train file",
            )

    def prepare(self, model: Classifier, batches: Sequence[Batch], context: Context) -> None:
        if self.pull == "attention" or not self.pairs:  # whose copies are ready, draws no words
            refuse_unspaced("ear", context.source)
        self._source = context.source
        if self.push == "gaussian":
            words = cast(nn.Embedding, model.base.get_input_embeddings()).weight
            self._deviation = self.sigma * float(words.detach().std())
        elif not self.pairs:
            self._table = load_synonyms(self.table, context, self.dictionary_scale, self.draws)
        depth = model.depth
        self._layer = self.layer or max(1, depth // 2)
        if self._layer > depth:
            raise UsageError(f"ear.layer = {self.layer}", f"the encoder has {depth} layers")
        if self.pull == "attention":
            model.hf.set_attn_implementation("eager")  # the fused kinds keep their maps
            # Maps are read after dropout: with it, even a text and itself would differ.
            model.layers("ear")[self._layer - 1].attention.self.dropout.p = 0.0

    def copy(self, model: Classifier, plain: Batch) -> tuple[Batch, Tensor | None]:
        """xᵃ: the same examples with synonyms, or with noise, which is also given back."""
        if self.push == "gaussian":
            words = cast(nn.Embedding, model.base.get_input_embeddings())
            noise = self._deviation * torch.randn_like(words(plain.input_ids))
            with added(words, noise):
                return replace(plain, embeddings=model.embed(plain)), noise
        generator = random.Random(int(torch.randint(2**62, ())))
        return model.batch([self._copied(e, generator) for e in plain.examples], words=True), None

    def _copied(self, example: Example, generator: random.Random) -> Example:
        if example.copy:
            return example.with_texts(example.copy)
        if self.pairs or example.language != self._source:
            return example
        return example.with_texts([redraw(t, self._table, generator) for t in example.texts()])

    def pushed(self, model: Classifier, plain: Batch, other: Batch, noise: Tensor | None) -> Tensor:
        """EPT of both E(x), read without dropout. The noise goes in before the embeddings' own norm:
        behind it, it would be a constant, which nothing can be learnt from."""
        with still(model.embeddings):
            here = model.embed(plain)
            with added(model.base.get_input_embeddings(), noise):
                there = model.embed(replace(other, embeddings=None))
        return push(here, model.mask(plain), there, model.mask(other))

    def objective(self, model: Classifier, batch: Batch, inner: Objective) -> Loss:
        plain = model.batch(batch.examples, words=True)
        other, noise = self.copy(model, plain)
        wanted = {"states": self.pull == "sentence", "attentions": self.pull == "attention"}
        with model.recording(**wanted):
            first, second = inner(model, plain), inner(model, other)
        left, right = first.outputs[-1], second.outputs[-1]
        total = first.total + second.total
        terms = first.terms | {f"copy/{name}": value for name, value in second.terms.items()}
        if self.push != "none":
            term = self.alpha * self.pushed(model, plain, other, noise)
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
            term = self.beta * pull_sentences(
                left.states[self._layer],
                left.attention_mask,
                right.states[self._layer],
                right.attention_mask,
            )
            total, terms = total + term, terms | {"pull": term}
        return Loss(total, terms, first.figures, first.outputs + second.outputs)

    def synonyms(self) -> TrainedSynonyms | None:
        if self.push == "gaussian" or self.pairs:
            return None
        return TrainedSynonyms(self.table, self.draws, self.dictionary_scale)
