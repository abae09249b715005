"""Translate-train: the source examples and their machine translations, concatenated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from xlt_training.data.translations import translated_train
from xlt_training.loop.method import Context, Method, Trait
from xlt_training.loop.types import Example


@dataclass
class TranslateTrain(Method):
    """All translated train sets beside the original, with the source's labels; no mixing.

    Data: recorded machine translations of the train set (``TASK/mt/en-xx.train.tsv``). Composes
    with everything that does not work on words of the source language alone.
    """

    traits = frozenset({Trait.TRANSLATIONS})

    languages: list[str] = field(default_factory=list)  # of the translations; none: all

    def augment(self, examples: Sequence[Example], context: Context) -> Iterable[Example]:
        yield from examples
        yield from translated_train(examples, context, self.languages)
