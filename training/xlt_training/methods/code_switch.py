"""IsoZCL's second stage: code-switched text, its words held close to the originals (Ji 2023)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from xlt_training.loop.method import Context, Method, Objective, Trait, share_problems
from xlt_training.loop.network import Classifier
from xlt_training.loop.tensors import word_means
from xlt_training.loop.types import Batch, Loss
from xlt_training.loop.words import Table, load_lexicons, refuse_unspaced, rewrite


def switch(text: str, lexicons: Mapping[str, Table], p: float, generator: random.Random) -> str:
    """Each word that a dictionary knows becomes, with probability ``p``, a random translation in a
    random one of the languages that know it."""

    def choose(word: str) -> str:
        if generator.random() >= p:
            return word
        known = [language for language, table in lexicons.items() if word in table]
        if not known:
            return word
        return generator.choice(lexicons[generator.choice(known)][word])

    return rewrite(text, choose)


def word_distance(
    states: Tensor, words: Tensor, other_states: Tensor, other_words: Tensor
) -> Tensor:
    """1 − cosine of aligned words (means over their tokens), averaged over words both texts have."""
    count = int(max(words.max(), other_words.max())) + 1
    left, here = word_means(states, words, count)
    right, there = word_means(other_states, other_words, count)
    both = here & there
    if not both.any():
        return 0 * states.sum()  # no word in common: nothing to compare, and no NaN
    return (1 - F.cosine_similarity(left[both], right[both], dim=-1)).mean()


@dataclass
class CodeSwitch(Method):
    """``½ (loss(x) + loss(x')) + weight · (1 − cos)`` of aligned last-layer words.

    x' is drawn anew every time. Data: bilingual dictionaries (``lexicons/en-xx.tsv``); no languages:
    those that the task is evaluated in, else all that there are. Composes with synonyms, isotropy,
    anchors; comes before what changes embeddings.
    """

    traits = frozenset({Trait.CHANGES_IDS, Trait.SECOND_STREAM, Trait.SOURCE_WORDS})

    languages: list[str] = field(default_factory=list)  # to switch into; none: those of the task
    p: float = 0.5  # chance of a word to be switched
    weight: float = 1.0  # of the words' distance in the loss

    def problems(self) -> list[str]:
        return share_problems(self, "p")

    def prepare(self, model: Classifier, batches: Sequence[Batch], context: Context) -> None:
        refuse_unspaced("code_switch", context.source)
        self._source = context.source
        lexicons = load_lexicons(context.lexicons, context.source, self.languages)
        wanted = self.languages or context.targets
        self._lexicons = {lg: t for lg, t in lexicons.items() if lg in wanted} or lexicons

    def objective(self, model: Classifier, batch: Batch, inner: Objective) -> Loss:
        # Trainer saves and restores torch's generator; this one hangs on it.
        generator = random.Random(int(torch.randint(2**62, ())))
        switched = [
            example.with_texts(
                [switch(text, self._lexicons, self.p, generator) for text in example.texts()]
            )
            if example.language == self._source
            else example
            for example in batch.examples
        ]
        plain, other = model.batch(batch.examples, words=True), model.batch(switched, words=True)
        assert plain.words is not None
        assert other.words is not None
        first, second = inner(model, plain), inner(model, other)
        left, right = first.outputs[-1], second.outputs[-1]
        term = self.weight * word_distance(left.last, plain.words, right.last, other.words)
        total = 0.5 * (first.total + second.total) + term
        terms = {name: 0.5 * value for name, value in first.terms.items()}
        terms |= {f"switched/{name}": 0.5 * value for name, value in second.terms.items()}
        terms |= {"word_distance": term}
        return Loss(total, terms, first.figures, first.outputs + second.outputs)
