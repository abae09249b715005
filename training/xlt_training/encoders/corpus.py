"""The text an encoder may learn from: every sentence and pair at hand, less what it will be judged on.

Two rules decide what stays:

- a row goes if either side occurs in an evaluation set (compared without case, space and
  punctuation, so that a re-tokenised copy is found too);
- a row goes if it is text of a set that is not free (XNLI, SICK, CAD, ConjNLI).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from xlt_training.encoders import free_sets
from xlt_training.encoders.tables import rows

LANGUAGES = [
    "ar",
    "bg",
    "de",
    "el",
    "en",
    "es",
    "fr",
    "hi",
    "it",
    "ja",
    "ko",
    "nl",
    "pl",
    "pt",
    "ru",
    "sw",
    "th",
    "tr",
    "ur",
    "vi",
    "zh",
]
TEACHER_LANGUAGES = [
    "ar",
    "de",
    "en",
    "es",
    "fr",
    "it",
    "ja",
    "ko",
    "nl",
    "pl",
    "pt",
    "ru",
    "th",
    "tr",
    "zh",
]

_NOISE = re.compile(r"\W+")


@dataclass(frozen=True, slots=True)
class Sentence:
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """An English sentence and its translation."""

    language: str
    english: str
    other: str


def fingerprint(text: str) -> str:
    """What is left of a text when case, space, punctuation and combining marks are gone."""
    return _NOISE.sub("", unicodedata.normalize("NFKC", text).lower())


def evaluation_fingerprints(data: Path) -> set[str]:
    """Every text of every evaluation set under ``data`` that is ever reported."""
    held: set[str] = set()
    for folder, pattern in (
        ("sib200", "dev-*.tsv"),
        ("sib200", "test-*.tsv"),
        ("sib200/mt", "*-en.dev.tsv"),
        ("sib200/mt", "*-en.test.tsv"),
        ("xsid", "valid-*.tsv"),
        ("sentiment", "dev-*.tsv"),
    ):
        for path in sorted((data / folder).glob(pattern)):
            held.update(fingerprint(row["text"]) for row in rows(path))
    for folder, left, right in (
        ("nli", "premise", "hypothesis"),
        ("xnli", "premise", "hypothesis"),
        ("pawsx", "sentence1", "sentence2"),
    ):
        for path in sorted((data / folder).glob("dev-*.tsv")):
            for row in rows(path):
                held.update((fingerprint(row[left]), fingerprint(row[right])))
    for folder in ("panx", "udpos"):
        for path in sorted((data / folder).glob("dev-*.tsv")):
            held.update(fingerprint(text) for text in _tagged_sentences(path))
    for path in sorted((data / "xquad").glob("*.json")):
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                held.add(fingerprint(paragraph["context"]))
                held.update(fingerprint(qa["question"]) for qa in paragraph["qas"])
    held.discard("")
    return held


def free_of_evaluation(lines: Iterable[str], data: Path) -> list[str]:
    """The lines that no evaluation set under ``data`` has, without those that are empty."""
    held = evaluation_fingerprints(data) | {""}
    return [line for line in lines if fingerprint(line) not in held]


def noncommercial_fingerprints(data: Path) -> set[str]:
    """The text of XNLI and of the older entailment sets, of which SICK is non-commercial and the
    others state no licence: not for what is sold."""
    held = [row for path in sorted((data / "xnli").glob("dev-*.tsv")) for row in rows(path)]
    held += rows(data / "nli" / "train-en.tsv")
    return {fingerprint(row[side]) for row in held for side in ("premise", "hypothesis")} - {""}


def topic_fingerprints(data: Path) -> set[str]:
    """The English sentences that topic classifiers are trained on.

    An encoder that has them by heart gives them better vectors than any text of a user, and a
    classifier learns to rely on that: their translations are learnt from, they themselves are not.
    """
    return {fingerprint(row["text"]) for row in rows(data / "sib200" / "train-en.tsv")}


def sentences(data: Path, banned: set[str], shortest: int = 12) -> list[Sentence]:
    """Distinct plain sentences of all languages, and the English train texts of the tasks.

    ``shortest`` is in fingerprint characters (a third of it for scripts without spaces):
    below it, a snippet is a name or a number and teaches nothing.
    """
    seen: set[str] = set(banned)
    out: list[Sentence] = []
    for language, text in _all_texts(data):
        key = fingerprint(text)
        enough = shortest // 3 if language in ("zh", "ja", "ko", "th") else shortest
        if (
            len(key) >= enough
            and key not in seen
            and not text.startswith(("#", "REDIRECT", "redirect"))
        ):
            seen.add(key)
            out.append(Sentence(language, text))
    return out


def pairs(data: Path, banned: set[str]) -> list[Pair]:
    """Distinct translation pairs, machine translations of SIB-200's train sentences included."""
    seen: set[tuple[str, str, str]] = set()
    out: list[Pair] = []
    for pair in _all_pairs(data):
        english, other = fingerprint(pair.english), fingerprint(pair.other)
        key = (pair.language, english, other)
        if english and other and english not in banned and other not in banned and key not in seen:
            seen.add(key)
            out.append(pair)
    return out


def _all_texts(data: Path) -> Iterator[tuple[str, str]]:
    for language in LANGUAGES:
        path = data / "text" / f"{language}.txt"
        for line in path.read_text(encoding="utf-8").split("\n"):
            if line := " ".join(line.replace("''", " ").split()):
                yield language, line
    yield from free_sets.texts(data)
    for row in rows(data / "sentiment" / "train-en.tsv"):
        yield "en", row["text"]


def _all_pairs(data: Path) -> Iterator[Pair]:
    english_train = {row["id"]: row["text"] for row in rows(data / "sib200" / "train-en.tsv")}
    for language in LANGUAGES:
        if language == "en":
            continue
        path = data / "parallel" / f"en-{language}.tsv"
        for line in path.read_text(encoding="utf-8").split("\n"):
            english, tab, other = line.partition("\t")
            if tab:
                yield Pair(language, english, other)
        for english, other in free_sets.pairs(data, language):
            yield Pair(language, english, other)
        translated = data / "sib200" / "mt" / f"en-{language}.train.tsv"
        if translated.exists():
            for row in rows(translated):
                if row["id"] in english_train:
                    yield Pair(language, english_train[row["id"]], row["text"])


def _tagged_sentences(path: Path) -> Iterator[str]:
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        yield " ".join(line.split("\t")[0] for line in block.split("\n") if line)
