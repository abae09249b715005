"""A word list learnt from translation pairs themselves: IBM Model 1 in both directions.

A few thousand pairs are soon known by heart; the word list drawn from them puts their words into
tens of thousands of other sentences (see ``examples.switch``).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from xlt_training.encoders.corpus import Pair

_WORD = re.compile(r"[^\W\d_]+(?:[\u0300-\u036f\u0900-\u097f\u064b-\u0655]+[^\W\d_]*)*")
Table = dict[str, dict[str, float]]


def tokens(text: str, longest: int = 1) -> list[str]:
    """Words in lower case and, up to ``longest``, the runs of neighbours that make compounds."""
    single = _WORD.findall(text.lower())
    out = list(single)
    for size in range(2, longest + 1):
        out += [" ".join(single[i : i + size]) for i in range(len(single) - size + 1)]
    return out


def model_one(bitext: list[tuple[list[str], list[str]]], rounds: int = 6) -> Table:
    """t[source][target]: the probability that ``source`` gives ``target`` (Brown et al. 1993)."""
    together: dict[str, set[str]] = defaultdict(set)
    for left, right in bitext:
        for word in left:
            together[word].update(right)
    table: Table = {w: dict.fromkeys(others, 1 / len(others)) for w, others in together.items()}
    for _ in range(rounds):
        counts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for left, right in bitext:
            for target in right:
                total = sum(table[word][target] for word in left)
                for word in left:
                    counts[word][target] += table[word][target] / total
        for word, row in counts.items():
            mass = sum(row.values())
            table[word] = {target: value / mass for target, value in row.items()}
    return table


def word_pairs(
    pairs: list[Pair], longest: int = 1, least: float = 0.05, seen: int = 2
) -> list[tuple[str, str]]:
    """(English, other) where both directions agree: t(other|english) · t(english|other) ≥ ``least``.

    Overlapping compounds share the mass of one word, hence the low bar.
    """
    bitext = [(tokens(pair.english), tokens(pair.other, longest)) for pair in pairs]
    bitext = [(left, right) for left, right in bitext if left and right and len(left) <= 60]
    often = Counter(word for left, _ in bitext for word in set(left))
    forth, back = model_one(bitext), model_one([(right, left) for left, right in bitext])
    out: list[tuple[str, str]] = []
    for word, row in sorted(forth.items()):
        if often[word] < seen:
            continue
        scored = sorted(((p * back[other].get(word, 0.0), other) for other, p in row.items()))
        out += [(word, other) for score, other in scored[-2:] if score >= least]
    return out
