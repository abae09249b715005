"""New texts out of old ones, for the teacher to judge: what is made up can't be learnt by heart.

There are a few thousand long sentences in each language, and a student that sees them again and
again remembers them instead of reading them. The teacher answers any text, so it is asked about
spans of sentences, put together and with words exchanged; for the languages that it does not know,
about several English sentences in a row, whose translations in a row follow the answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

UNSPACED = ("ja", "th", "zh")


def spliced(texts: Sequence[str], language: str, count: int, seed: int) -> list[str]:
    """``count`` texts from one or two spans of ``texts``, some of their words exchanged."""
    generator = random.Random(f"{seed}/{language}/spliced")
    join, least = ("", 8) if language in UNSPACED else (" ", 5)
    cut = [words for text in texts if len(words := _words(text, language)) >= least]
    out: list[str] = []
    while cut and len(out) < count:
        words = _span(generator.choice(cut), generator)
        if generator.random() < 0.6:
            words += _span(generator.choice(cut), generator)
        if join:  # a random character is no word
            words = [
                generator.choice(generator.choice(cut)) if generator.random() < 0.15 else word
                for word in words
            ]
        out.append(join.join(words))
    return out


def joined(
    pairs: Sequence[tuple[str, str]], language: str, count: int, seed: int, longest: int = 300
) -> list[tuple[str, str]]:
    """``count`` pairs, each of two to four of ``pairs`` in a row, up to ``longest`` English letters."""
    generator = random.Random(f"{seed}/{language}/joined")
    out: list[tuple[str, str]] = []
    while pairs and len(out) < count:
        chosen = [generator.choice(pairs)]
        for _ in range(generator.randint(1, 3)):
            another = generator.choice(pairs)
            if sum(len(english) for english, _ in [*chosen, another]) <= longest:
                chosen.append(another)
        out.append((" ".join(e for e, _ in chosen), " ".join(other for _, other in chosen)))
    return out


def _words(text: str, language: str) -> list[str]:
    return list(text.replace(" ", "")) if language in UNSPACED else text.split()


def _span(words: Sequence[str], generator: random.Random) -> list[str]:
    length = max(3, round(len(words) * generator.uniform(0.35, 1.0)))
    start = generator.randint(0, max(0, len(words) - length))
    return list(words[start : start + length])
