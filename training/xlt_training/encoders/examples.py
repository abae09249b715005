"""What the student sees: texts, and for each the text whose teacher vector it should reproduce.

A sentence in one of the teacher's languages follows the teacher's vector of itself; a translation
follows that of its English side, which is how languages that the teacher never saw are learnt.
"""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from xlt_training.encoders import articles, corpus, dictionaries, glosses, induced, mixtures, names
from xlt_training.encoders.corpus import LANGUAGES, TEACHER_LANGUAGES

_WORD = re.compile(r"[A-Za-z]+")
# UTF-8 bytes that say as much as a Latin letter does.
_BYTES = {"ar": 1.9, "bg": 1.9, "el": 1.9, "hi": 2.6, "ru": 1.9, "th": 2.7, "ur": 1.9}
UNTAUGHT_LANGUAGES = [language for language in LANGUAGES if language not in TEACHER_LANGUAGES]
COMPOUNDS = {"vi": 3}  # a Vietnamese word is often two or three written ones
_DEVANAGARI = re.compile("[\u0900-\u097f]")

# Share of each kind of example within a language; kinds without data are dropped, the rest rescaled.
TAUGHT = {"own": 0.45, "spliced": 0.28, "translation": 0.10, "both": 0.05, "switched": 0.12}
UNTAUGHT = {
    "translation": 0.18,
    "joined": 0.17,
    "both": 0.07,
    "dictionary": 0.08,
    "switched": 0.40,
    "masked": 0.10,
}
SPLICED, JOINED = 25_000, 15_000  # made-up texts in each language, see ``mixtures``


@dataclass(frozen=True, slots=True)
class Example:
    """``target`` indexes the teacher's vectors; -1: no teacher, masked-word loss only.

    ``second`` is the other side of a concatenated translation pair, or "".
    """

    text: str
    second: str
    target: int
    masked: bool


@dataclass
class Material:
    """Pools of raw examples per language and kind, and the texts that the teacher must encode."""

    targets: list[str] = field(default_factory=list)
    pools: dict[str, dict[str, list[tuple[str, str, int]]]] = field(default_factory=dict)
    lexicons: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    _cumulative: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def cumulative(self, language: str, kind: str) -> list[int]:
        """Running sums of the weights of a pool: a text counts by its length, within limits.

        Half of the snippets at hand are names and titles; drawn evenly, they would crowd out the
        sentences that a sentence encoder learns from.
        """
        key = (language, kind)
        if key not in self._cumulative:
            bytes_a_letter = 1 if kind == "switched" else _BYTES.get(language, 1.0)
            weights = (
                min(max(int(len(text.encode()) / bytes_a_letter), 10), 120)
                for text, _, _ in self.pools[language][kind]
            )
            self._cumulative[key] = list(itertools.accumulate(weights))
        return self._cumulative[key]


def gather(data: Path, work: Path, research: bool = False) -> Material:
    """All pools, in an order that depends on the data alone."""
    banned = corpus.evaluation_fingerprints(data)
    if not research:
        banned |= corpus.noncommercial_fingerprints(data)
    material = Material(pools={language: defaultdict(list) for language in LANGUAGES})
    index: dict[str, int] = {}

    def target(text: str) -> int:
        if text not in index:
            index[text] = len(material.targets)
            material.targets.append(text)
        return index[text]

    fine_tuned = corpus.topic_fingerprints(data)
    for sentence in corpus.sentences(data, banned):
        pool = material.pools[sentence.language]
        if sentence.language in TEACHER_LANGUAGES:
            aim = target(sentence.text)
            english = sentence.language == "en"
            if not english or not (
                held_back(sentence.text) or corpus.fingerprint(sentence.text) in fine_tuned
            ):
                pool["own"].append((sentence.text, "", aim))
        else:
            pool["masked"].append((sentence.text, "", -1))
    for text in glosses.fetch(work / "glosses"):
        if corpus.fingerprint(text) in banned:
            continue
        material.pools["en"]["own"].append((text, "", target(text)))
    all_pairs = corpus.pairs(data, banned)
    words = dictionaries.fetch(work / "dictionaries")
    hindi = [pair for pair in all_pairs if pair.language == "hi"]
    if "hi" in words:
        urdu_sentences, urdu_words = _urdu_from_hindi(hindi, words["hi"])
        all_pairs += urdu_sentences
        words["ur"] = urdu_words
    for pair in all_pairs:
        pool = material.pools[pair.language]
        aim = target(pair.english)
        if held_back(pair.english):
            pool["held"].append((pair.english, pair.other, aim))
            continue
        pool["translation"].append((pair.other, "", aim))
        if corpus.fingerprint(pair.english) not in fine_tuned:
            pool["both"].append((pair.english, pair.other, aim))
    others = [language for language in LANGUAGES if language != "en"]
    named = names.fetch(work / "names", others)
    for language in others:
        pool = material.pools[language]
        if language in TEACHER_LANGUAGES:  # the teacher knows its words: for code-switching alone
            entries = words.get(language, []) + names.words(named, language)
            material.lexicons[language] = dictionaries.lexicon(entries)
            continue
        own = [
            corpus.Pair(language, material.targets[aim], other)
            for other, _, aim in pool["translation"]
        ]
        entries = words.get(language, [])
        entries += induced.word_pairs(own, longest=COMPOUNDS.get(language, 1))
        entries += names.words(named, language)
        material.lexicons[language] = dictionaries.lexicon(entries)
        bags = [(pair.english, pair.other) for pair in names.pairs(named, language)]
        for english, other in [*entries, *bags]:
            pool["dictionary"].append((other, "", target(english)))
    for text in articles.fetch(work / "articles"):
        if corpus.fingerprint(text) not in banned:
            material.pools["en"]["own"].append((text, "", target(text)))
    for language in others:
        pool = material.pools[language]
        if language in TEACHER_LANGUAGES:
            texts = [text for text, _, _ in pool["own"] + pool["translation"]]
            for text in mixtures.spliced(texts, language, SPLICED, seed=0):
                pool["spliced"].append((text, "", target(text)))
        else:
            known = [(material.targets[aim], other) for other, _, aim in pool["translation"]]
            for english_text, other in mixtures.joined(known, language, JOINED, seed=0):
                pool["joined"].append((other, "", target(english_text)))
    english = [row for row in material.pools["en"]["own"] if len(row[0].split()) >= 6]
    for language in material.lexicons:
        material.pools[language]["switched"] = english
    return material


def held_back(english: str) -> bool:
    """Two in a hundred English sentences are kept, with all their translations, for retrieval."""
    return zlib.crc32(corpus.fingerprint(english).encode()) % 50 == 0


def draw(material: Material, count: int, seed: int, block: int) -> list[Example]:
    """``count`` examples, a pure function of the arguments: block after block, a run can resume."""
    generator = random.Random(f"{seed}/{block}")
    languages, weights = zip(*language_shares(), strict=True)
    out = []
    for language in generator.choices(languages, weights, k=count):
        pools = material.pools[language]
        shares = TAUGHT if language in TEACHER_LANGUAGES else UNTAUGHT
        kinds = [kind for kind in shares if pools.get(kind)]
        kind = generator.choices(kinds, [shares[kind] for kind in kinds])[0]
        [(text, second, aim)] = generator.choices(
            pools[kind], cum_weights=material.cumulative(language, kind)
        )
        if kind == "switched":
            share = generator.uniform(0.5, 1.0)
            text = switch(text, material.lexicons[language], share, generator)
        if second and generator.random() < 0.5:
            text, second = second, text
        masked = kind in ("masked", "both") or generator.random() < (0.1 if kind == "own" else 0.2)
        out.append(Example(text, second, aim, masked))
    return out


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


def _urdu_from_hindi(
    hindi: list[corpus.Pair], words: list[tuple[str, str]]
) -> tuple[list[corpus.Pair], list[tuple[str, str]]]:
    try:
        sentences = dictionaries.hindi_to_urdu([pair.other for pair in hindi])
        entries = dictionaries.hindi_to_urdu([other for _, other in words])
    except (OSError, subprocess.CalledProcessError):
        print("dictionaries: apertium hin-urd does not run, going on without it", flush=True)
        return [], []
    if len(sentences) != len(hindi) or len(entries) != len(words):
        print("dictionaries: apertium lost count of the lines, going on without it", flush=True)
        return [], []
    pairs = [
        corpus.Pair("ur", pair.english, text)
        for pair, text in zip(hindi, sentences, strict=True)
        if len(_DEVANAGARI.findall(text)) < 0.2 * len(text)
    ]
    kept = [
        (english, text)
        for (english, _), text in zip(words, entries, strict=True)
        if text and not _DEVANAGARI.search(text)
    ]
    return pairs, kept
