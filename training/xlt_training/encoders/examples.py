"""What the student sees: texts, and for each the text whose teacher vector it should reproduce.

A sentence in one of the teacher's languages follows the teacher's vector of itself; a translation
follows that of its English side, which is how languages that the teacher never saw are learnt.
"""

from __future__ import annotations

import itertools
import random
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from xlt_training.encoders import corpus
from xlt_training.encoders.corpus import LANGUAGES, TEACHER_LANGUAGES

_WORD = re.compile(r"[A-Za-z]+")
# UTF-8 bytes that say as much as a Latin letter does.
_BYTES = {"ar": 1.9, "bg": 1.9, "el": 1.9, "hi": 2.6, "ru": 1.9, "th": 2.7, "ur": 1.9}
UNTAUGHT_LANGUAGES = [language for language in LANGUAGES if language not in TEACHER_LANGUAGES]

# Share of each kind of example within a language; kinds without data are dropped, the rest rescaled.
TAUGHT = {
    "own": 0.34,
    "spliced": 0.20,
    "translation": 0.18,
    "both": 0.08,
    "switched": 0.10,
    "utterance": 0.08,
    "command": 0.02,
}
UNTAUGHT = {
    "translation": 0.22,
    "joined": 0.15,
    "both": 0.09,
    "dictionary": 0.05,
    "switched": 0.29,
    "utterance": 0.12,
    "masked": 0.08,
}
SWITCHED = ("switched", "utterance")  # English texts, whose words are put into the language
SWITCHED_TASKS = 0.5  # of the labelled pairs: a side or both in another language


@dataclass(frozen=True, slots=True)
class TextExample:
    """``target`` indexes the texts for the teacher; -1: no teacher.

    ``second`` is the other side of a pair, or "". ``task`` names the auxiliary task of a labelled
    pair, ``label`` its answer.
    """

    text: str
    second: str
    target: int
    masked: bool
    task: str = ""
    label: int = -1


@dataclass
class Material:
    """Pools of raw examples per language and kind, and the texts that the teacher must encode."""

    targets: list[str] = field(default_factory=list)
    pools: dict[str, dict[str, list[tuple[str, str, int]]]] = field(default_factory=dict)
    lexicons: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    tasks: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)
    _cumulative: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def cumulative(self, language: str, kind: str) -> list[int]:
        """Running sums of the weights of a pool: a text counts by its length, within limits.

        Half of the snippets at hand are names and titles; drawn evenly, they would crowd out the
        sentences that a sentence encoder learns from.
        """
        key = (language, kind)
        if key not in self._cumulative:
            bytes_a_letter = 1.0 if kind in SWITCHED else _BYTES.get(language, 1.0)
            weights = (
                min(max(int(len(text.encode()) / bytes_a_letter), 10), 120)
                for text, _, _ in self.pools[language][kind]
            )
            self._cumulative[key] = list(itertools.accumulate(weights))
        return self._cumulative[key]


def held_back(english: str) -> bool:
    """Two in a hundred English sentences are kept, with all their translations, for retrieval."""
    return zlib.crc32(corpus.fingerprint(english).encode()) % 50 == 0


def draw(
    material: Material, count: int, seed: int, block: int, tasks: Mapping[str, float] | None = None
) -> list[TextExample]:
    """``count`` examples, a pure function of the arguments: block after block, a run can resume.

    ``tasks`` gives each auxiliary task its share of them.
    """
    generator = random.Random(f"{seed}/{block}")
    names = [name for name in tasks or {} if material.tasks.get(name)]
    shares = [(tasks or {})[name] for name in names]
    languages, weights = zip(*language_shares(), strict=True)
    out = []
    for language in generator.choices(languages, weights, k=count):
        [task] = generator.choices(["", *names], [1 - sum(shares), *shares])
        if task:
            out.append(_labelled(material, task, language, generator))
        else:
            out.append(_unlabelled(material, language, generator))
    return out


def _unlabelled(material: Material, language: str, generator: random.Random) -> TextExample:
    pools = material.pools[language]
    shares = TAUGHT if language in TEACHER_LANGUAGES else UNTAUGHT
    kinds = [kind for kind in shares if pools.get(kind)]
    kind = generator.choices(kinds, [shares[kind] for kind in kinds])[0]
    [(text, second, aim)] = generator.choices(
        pools[kind], cum_weights=material.cumulative(language, kind)
    )
    if kind in SWITCHED and language in material.lexicons:
        share = generator.uniform(0.5, 1.0)
        text = switch(text, material.lexicons[language], share, generator)
    if second and generator.random() < 0.5:
        text, second = second, text
    masked = kind in ("masked", "both") or generator.random() < (0.1 if kind == "own" else 0.2)
    return TextExample(text, second, aim, masked)


def _labelled(
    material: Material, task: str, language: str, generator: random.Random
) -> TextExample:
    """An English pair as it is, or with the words of one side or both in ``language``."""
    first, second, label = generator.choice(material.tasks[task])
    if language in material.lexicons and generator.random() < SWITCHED_TASKS:
        lexicon, sides = material.lexicons[language], generator.choice((1, 2, 3))
        if sides & 1:
            first = switch(first, lexicon, generator.uniform(0.3, 1.0), generator)
        if sides & 2:
            second = switch(second, lexicon, generator.uniform(0.3, 1.0), generator)
    return TextExample(first, second, -1, masked=False, task=task, label=label)


def language_shares() -> list[tuple[str, float]]:
    """English most, because every pair leans on it; the untaught a little more than the others."""
    heavier = {"en": 0.10, "sw": 0.05, "ur": 0.05, "hi": 0.05, "vi": 0.05, "th": 0.05}
    rest = (1 - sum(heavier.values())) / (len(LANGUAGES) - len(heavier))
    return [(language, heavier.get(language, rest)) for language in LANGUAGES]


def switch(text: str, lexicon: dict[str, list[str]], share: float, generator: random.Random) -> str:
    """English ``text`` with ``share`` of the words that ``lexicon`` knows put into its language."""

    def replace(match: re.Match[str]) -> str:
        translations = lexicon.get(match.group().lower()) or lexicon.get(
            _stem(match.group().lower())
        )
        if translations and generator.random() < share:
            return generator.choice(translations)
        return match.group()

    return _WORD.sub(replace, text)


def _stem(word: str) -> str:
    for ending, base in (("ies", "y"), ("es", "e"), ("s", ""), ("ed", "e"), ("ing", "")):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            return word[: -len(ending)] + base
    return word
