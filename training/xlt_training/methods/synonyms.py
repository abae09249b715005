"""RS-DA: copies of each example with words redrawn among their synonyms (Robust-XLT, Huang 2021)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from xlt_training.loop.method import Context, Method, TrainedSynonyms, Trait, least_problems
from xlt_training.loop.types import Example
from xlt_training.loop.words import Table, load_synonyms, redraw, refuse_unspaced


def synonym_copies(
    example: Example, table: Table, copies: int, generator: random.Random
) -> list[Example]:
    """``copies`` of an example, the two texts of a pair redrawn independently."""
    return [
        example.with_texts([redraw(text, table, generator) for text in example.texts()])
        for _ in range(copies)
    ]


@dataclass
class Synonyms(Method):
    """Copies with words redrawn uniformly from {itself} ∪ synonyms, beside the originals.

    ``draws``: from the raw lists, as the paper does, or within "groups", which is what serving
    certifies: then export the same table (``xlt export --synonyms en=FILE``). Data: a synonym table
    of the source language (``xlt_serve.text.synonyms`` has its format). Composes with everything: it only
    adds examples. Papers: 10 copies for PAWS-X, 3 for XNLI, 2 in IsoZCL's comparison.
    """

    traits = frozenset({Trait.SOURCE_WORDS})

    copies: int = 10  # of each row
    table: str = ""  # file of synonyms; "": the one in the lexicons' folder
    keep_original: bool = True  # train on the row itself too
    dictionary_scale: float = 1.0  # share of the table's words that are used
    draws: Literal["neighbours", "groups"] = "neighbours"  # "groups": what serving certifies

    def problems(self) -> list[str]:
        return least_problems(self, 1, "copies")

    def augment(self, examples: Sequence[Example], context: Context) -> Iterable[Example]:
        refuse_unspaced("synonyms", context.source)
        table = load_synonyms(self.table, context, self.dictionary_scale, self.draws)
        generator = random.Random(f"synonyms/{context.seed}")
        for example in examples:
            foreign = example.language != context.source
            if self.keep_original or foreign:
                yield example
            if foreign:
                continue  # the table is of the source language
            yield from synonym_copies(example, table, self.copies, generator)

    def synonyms(self) -> TrainedSynonyms:
        return TrainedSynonyms(self.table, self.draws, self.dictionary_scale)
