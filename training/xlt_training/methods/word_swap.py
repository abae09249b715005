"""RS-syntax: copies of each example with neighbouring words swapped (Robust-XLT, Huang 2021)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xlt_training.loop.method import Context, Method, Trait, least_problems, share_problems
from xlt_training.loop.types import Example
from xlt_training.loop.words import refuse_unspaced


def swap_words(text: str, p: float, generator: random.Random) -> str:
    """Going left to right, each word changes places with the next with probability ``p``; a word
    that was moved is not moved again."""
    words = text.split()
    place = 0
    while place < len(words) - 1:
        if generator.random() < p:
            words[place], words[place + 1] = words[place + 1], words[place]
            place += 1
        place += 1
    return " ".join(words)


@dataclass
class WordSwap(Method):
    """Copies with adjacent words swapped with probability p, beside the originals.

    Data: none. Composes with everything: it only adds examples.
    """

    traits = frozenset({Trait.SOURCE_WORDS})

    copies: int = 10  # of each row
    p: float = 0.1  # chance of a word to change places with the next
    keep_original: bool = True  # train on the row itself too

    def problems(self) -> list[str]:
        return share_problems(self, "p") + least_problems(self, 1, "copies")

    def augment(self, examples: Sequence[Example], context: Context) -> Iterable[Example]:
        refuse_unspaced("word_swap", context.source)
        generator = random.Random(f"word_swap/{context.seed}")
        for example in examples:
            foreign = example.language != context.source
            if self.keep_original or foreign:
                yield example
            for _ in range(0 if foreign else self.copies):
                swapped = [swap_words(text, self.p, generator) for text in example.texts()]
                yield example.with_texts(swapped)
