"""Gather what the student learns from: every free text at hand, in pools by language and kind."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from xlt_training.encoders import (
    articles,
    corpus,
    dictionaries,
    free_sets,
    glosses,
    induced,
    mixtures,
    names,
    urdu,
)
from xlt_training.encoders.corpus import LANGUAGES, TEACHER_LANGUAGES
from xlt_training.encoders.examples import Material, held_back

COMPOUNDS = {"vi": 3}  # a Vietnamese word is often two or three written ones
SPLICED, JOINED = 40_000, 30_000  # made-up texts in each language, see ``mixtures``
ALIGNED, LONGEST_ALIGNED = 15_000, 20  # pairs that words are learnt from, and their English words
OTHERS = [language for language in LANGUAGES if language != "en"]


def gathered(data: Path, work: Path) -> Material:
    """``gather``, kept in ``work``: a run that resumes wants the same pools, and at once."""
    path = work / "material.pickle"
    if path.exists():
        found: Material = pickle.loads(path.read_bytes())
        return found
    material = gather(data, work)
    part = path.with_suffix(".part")
    part.write_bytes(pickle.dumps(material))
    part.rename(path)
    return material


def gather(data: Path, work: Path) -> Material:
    """All pools, in an order that depends on the data alone."""
    gathering = _Gathering(data, work)
    gathering.add_sentences()
    pairs = corpus.pairs(data, gathering.banned)
    words = dictionaries.fetch(work / "dictionaries")
    if "hi" in words:
        hindi = [pair for pair in pairs if pair.language == "hi"]
        more, words["ur"] = urdu.from_hindi(hindi, words["hi"])
        pairs += more
    gathering.add_pairs(pairs)
    gathering.add_words(words)
    gathering.add_prose()
    gathering.add_mixtures()
    gathering.add_utterances()
    gathering.add_tasks()
    return gathering.material


class _Gathering:
    """The pools as they fill, with what may not enter them."""

    def __init__(self, data: Path, work: Path) -> None:
        self.data, self.work = data, work
        held = corpus.evaluation_fingerprints(data)
        self.banned = held | corpus.noncommercial_fingerprints(data)
        self.fine_tuned = corpus.topic_fingerprints(data)
        self.material = Material(pools={language: defaultdict(list) for language in LANGUAGES})
        self.index: dict[str, int] = {}

    def target(self, text: str) -> int:
        """The number of a text that the teacher is to encode."""
        if text not in self.index:
            self.index[text] = len(self.material.targets)
            self.material.targets.append(text)
        return self.index[text]

    def allowed(self, texts: Iterable[str]) -> list[str]:
        return [text for text in texts if corpus.fingerprint(text) not in self.banned]

    def add_sentences(self) -> None:
        for sentence in corpus.sentences(self.data, self.banned):
            pool = self.material.pools[sentence.language]
            if sentence.language not in TEACHER_LANGUAGES:
                pool["masked"].append((sentence.text, "", -1))
            elif sentence.language != "en" or not (
                held_back(sentence.text) or corpus.fingerprint(sentence.text) in self.fine_tuned
            ):
                pool["own"].append((sentence.text, "", self.target(sentence.text)))

    def add_pairs(self, pairs: list[corpus.Pair]) -> None:
        for pair in pairs:
            pool = self.material.pools[pair.language]
            aim = self.target(pair.english)
            if held_back(pair.english):
                pool["held"].append((pair.english, pair.other, aim))
                continue
            pool["translation"].append((pair.other, "", aim))
            if corpus.fingerprint(pair.english) not in self.fine_tuned:
                pool["both"].append((pair.english, pair.other, aim))

    def add_words(self, words: dict[str, list[tuple[str, str]]]) -> None:
        """Word lists: for code-switching, and as tiny pairs where the teacher lacks the language."""
        named = names.fetch(self.work / "names", OTHERS)
        for language in OTHERS:
            pool = self.material.pools[language]
            texts = (text for kind in ("own", "masked", "translation") for text, _, _ in pool[kind])
            often = free_sets.word_counts(texts) if language not in mixtures.UNSPACED else None
            entries = words.get(language, []) + names.words(named, language)
            entries += free_sets.words(self.data, language, often)
            if language not in TEACHER_LANGUAGES:
                own = [
                    corpus.Pair(language, self.material.targets[aim], other)
                    for other, _, aim in pool["translation"]
                ]
                short = [p for p in own if len(p.english.split()) <= LONGEST_ALIGNED]
                entries += induced.word_pairs(short[:ALIGNED], COMPOUNDS.get(language, 1))
                bags = [(pair.english, pair.other) for pair in names.pairs(named, language)]
                for english, other in [*entries, *bags]:
                    pool["dictionary"].append((other, "", self.target(english)))
            self.material.lexicons[language] = dictionaries.lexicon(entries)

    def add_prose(self) -> None:
        own = self.material.pools["en"]["own"]
        for text in self.allowed(glosses.fetch(self.work / "glosses")):
            own.append((text, "", self.target(text)))
        for text in self.allowed(articles.fetch(self.work / "articles")):
            own.append((text, "", self.target(text)))

    def add_mixtures(self) -> None:
        english = [row for row in self.material.pools["en"]["own"] if len(row[0].split()) >= 6]
        for language in OTHERS:
            pool = self.material.pools[language]
            pool["switched"] = english
            if language in TEACHER_LANGUAGES:
                texts = [text for text, _, _ in pool["own"] + pool["translation"]]
                for text in mixtures.spliced(texts, language, SPLICED, seed=0):
                    pool["spliced"].append((text, "", self.target(text)))
            else:
                known = [
                    (self.material.targets[aim], other) for other, _, aim in pool["translation"]
                ]
                for english_text, other in mixtures.joined(known, language, JOINED, seed=0):
                    pool["joined"].append((other, "", self.target(english_text)))

    def add_utterances(self) -> None:
        """What people say to machines: short, imperative, and rare in every other source."""
        said = self.allowed(free_sets.utterances(self.data))
        utterances = [(text, "", self.target(text)) for text in said]
        for language in LANGUAGES:
            self.material.pools[language]["utterance"] = utterances
        for language, text in free_sets.commands(self.data):
            if language == "en" or corpus.fingerprint(text) in self.banned:
                continue
            if language in TEACHER_LANGUAGES:
                self.material.pools[language]["command"].append((text, "", self.target(text)))
            else:
                self.material.pools[language]["masked"].append((text, "", -1))

    def add_tasks(self) -> None:
        for name, rows in (
            ("entailment", free_sets.entailment(self.data)),
            ("paraphrase", free_sets.paraphrases(self.data)),
        ):
            self.material.tasks[name] = [row for row in rows if len(self.allowed(row[:2])) == 2]
