"""A text whose words are redrawn among their synonyms: the draws, and how far they may be trusted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xlt_serve.smoothing import certify
from xlt_serve.smoothing.noise import generator
from xlt_serve.text.synonyms import Draws, Table
from xlt_serve.text.tokens import Piece
from xlt_serve.text.words import parts
from xlt_serve.types import Item

Cut = Callable[[Sequence[Item]], list[Piece]]
"""Items to the tokens that a model reads of them."""

PER_TOKEN = 16
"""Characters of a draw that are tokenised for each token that may be read: words, with their blanks, have
some five, a word that no tokenizer can cut any number."""


class Sentence:
    """The words of a text, each with what it may be drawn as.

    Every word that has a choice is written anew, itself too, so that a draw depends on nothing that
    a substitution changes: not on how *iPhone* was written, nor on the spaces. Nor on the words after
    the first ``longest``: a word has a token at least, so the model would not read them. Of a draw only
    so many characters are kept as so many tokens have: a word of 100 kB would be tokenised anew for each.
    Where that is cut depends on what was drawn alone, so it voids no certificate.
    """

    def __init__(self, text: str, table: Table, draws: Draws, longest: int | None = None) -> None:
        self._fixed: list[str] = []
        self._free: list[tuple[int, str, tuple[str, ...], str]] = []
        self.overlaps: list[float] = []
        self._most = None if longest is None else PER_TOKEN * longest
        words = text.split() if longest is None else text.split(maxsplit=longest)[:longest]
        for place, word in enumerate(words):
            before, core, after = parts(word)
            self._fixed.append(word)
            if choices := table.choices(core, draws):
                self._free.append((place, before, choices, after))
                self.overlaps.append(overlap(core, choices, table, draws))

    @property
    def sizes(self) -> list[int]:
        """The number of choices of each word that has any."""
        return [len(choices) for _, _, choices, _ in self._free]

    @property
    def own(self) -> list[int]:
        """The choices that leave the text as it is."""
        cores = [parts(self._fixed[place])[1].casefold() for place, _, _, _ in self._free]
        return [
            [choice.casefold() for choice in choices].index(core)
            for core, (_, _, choices, _) in zip(cores, self._free, strict=True)
        ]

    def drawn(self, numbers: Sequence[int]) -> str:
        """The text with these of its choices, one for each word that has any."""
        out = list(self._fixed)
        for (place, before, choices, after), number in zip(self._free, numbers, strict=True):
            out[place] = before + choices[number] + after
        return " ".join(out)[: self._most]

    @property
    def size(self) -> int:
        """Characters of its longest draw."""
        whole = sum(len(word) + 1 for word in self._fixed)
        for place, before, choices, after in self._free:
            longest = len(before) + max(map(len, choices)) + len(after)
            whole += longest - len(self._fixed[place])
        return whole if self._most is None else min(whole, self._most)


def overlap(word: str, choices: Sequence[str], table: Table, draws: Draws) -> float:
    """q of a word: the least overlap of its draws with those of a word that may replace it."""
    if draws == "groups":
        return 1.0
    lists = {other: table.choices(other, draws) for other in choices}
    lists = {other.casefold(): found for other, found in lists.items()}
    return certify.synonym_overlaps([word], lists)[0]


class RewrittenText:
    """The draws of a text, on the plain graph. A draw that has been run is not run again: short texts
    have few different ones. Of each that has been, a hash and its vote are kept.

    What is certified is certified of this table: a request that has its language detected trusts that
    no substitution makes the text look like another language. One that names it need not.
    """

    graph = "plain"

    def __init__(
        self,
        item: Item,
        key: int,
        table: Table,
        draws: Draws,
        words: int | None,
        cut: Cut,
        longest: int | None = None,
    ) -> None:
        sides = item if isinstance(item, tuple) else (item,)
        self.sentences = [Sentence(side, table, draws, longest) for side in sides]
        self.key, self.words, self.cut = key, words, cut
        self.overlaps = [q for sentence in self.sentences for q in sentence.overlaps]
        self.size = sum(sentence.size for sentence in self.sentences)
        self._sizes = np.array([n for s in self.sentences for n in s.sizes], dtype=np.int64)
        self._votes: dict[bytes, int] = {}  # by the hash of the choices
        self._asked: list[bytes] = []
        self._new: list[bytes] = []

    @property
    def threshold(self) -> float | None:
        return None if self.words is None else certify.words_threshold(self.overlaps, self.words)

    def reach(self, bound: float) -> int:
        """How many words may be replaced at once."""
        return certify.certified_words(bound, self.overlaps)

    def drawn(self, number: int) -> Item:
        """The text of a draw."""
        return self._written(self._chosen(number))

    def _chosen(self, number: int) -> npt.NDArray[np.int64]:
        """The choices of a draw, one for each word that has any."""
        if not len(self._sizes):
            return self._sizes
        return generator(self.key, number).integers(self._sizes)

    def _written(self, chosen: npt.NDArray[np.int64]) -> Item:
        sides, start = [], 0
        for sentence in self.sentences:
            end = start + len(sentence.overlaps)
            sides.append(sentence.drawn(chosen[start:end].tolist()))
            start = end
        return sides[0] if len(sides) == 1 else (sides[0], sides[1])

    def rows(self, numbers: Sequence[int]) -> list[Piece]:
        """What has to be run to know the votes of these draws."""
        draws = {number: self._chosen(number) for number in numbers}
        hashes = {
            number: hashlib.blake2b(chosen.tobytes(), digest_size=16).digest()
            for number, chosen in draws.items()
        }
        new = {hashes[number]: number for number in numbers if hashes[number] not in self._votes}
        self._asked, self._new = list(hashes.values()), list(new)
        return self.cut([self._written(draws[number]) for number in new.values()])

    def votes(self, logits: npt.NDArray[Any]) -> list[int]:
        """The votes of the draws asked for last, from the logits of their rows."""
        best = logits.argmax(axis=1).tolist() if self._new else []
        self._votes |= dict(zip(self._new, best, strict=True))
        return [self._votes[item] for item in self._asked]
