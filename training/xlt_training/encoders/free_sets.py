"""The sets whose licence lets a model be given away: what is read of each, and under which licence.

Read from ``text/more``, ``parallel/more``, ``commands``, ``intents``, ``lexicons/free``, ``nli`` and
``pawsx``. Of entailment only SNLI and MultiNLI are read: the other sources in the same file are
non-commercial or state no licence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from xlt_training.encoders.tables import lines, rows

PAIR_LICENCES = {
    "wesnoth": "GPL-2+ and CC BY-SA 4.0",
    "gnomedocs": "CC BY-SA",
    "mediawiki": "GPL-2+",
    "lohelp": "MPL-2.0",
    "vscode": "MIT",
    "tldr": "CC BY 4.0",
    "ntrex": "CC BY-SA 4.0",
}
ENTAILMENT_LICENCES = {"snli": "CC BY-SA 4.0", "mnli": "OANC and others, free"}
ENTAILMENT_LABELS = ("entailment", "neutral", "contradiction")
_VARIANTS = {"pt-br": "pt", "zh-hk": "zh", "zh-tw": "zh"}
# Word nets know these as units, elements and letters: "in" is an inch or indium.
FUNCTION_WORDS = frozenset(
    [
        "a",
        "about",
        "above",
        "after",
        "again",
        "all",
        "am",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "because",
        "been",
        "before",
        "being",
        "below",
        "between",
        "both",
        "but",
        "by",
        "can",
        "could",
        "did",
        "do",
        "does",
        "doing",
        "down",
        "during",
        "each",
        "few",
        "for",
        "from",
        "further",
        "had",
        "has",
        "have",
        "having",
        "he",
        "her",
        "here",
        "hers",
        "him",
        "his",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "just",
        "me",
        "more",
        "most",
        "my",
        "no",
        "nor",
        "not",
        "now",
        "of",
        "off",
        "on",
        "once",
        "only",
        "or",
        "other",
        "our",
        "out",
        "over",
        "own",
        "same",
        "she",
        "should",
        "so",
        "some",
        "such",
        "than",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "through",
        "to",
        "too",
        "under",
        "until",
        "up",
        "us",
        "very",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "while",
        "who",
        "whom",
        "why",
        "will",
        "with",
        "would",
        "you",
        "your",
    ]
)
Task = tuple[str, str, int]


def texts(data: Path) -> Iterator[tuple[str, str]]:
    """(language, sentence): Common Voice's sentences, and both sides of the entailment pairs."""
    for path in sorted((data / "text" / "more").glob("*.txt")):
        for line in lines(path):
            yield path.stem, " ".join(line.split())
    for premise, hypothesis, _ in entailment(data):
        yield "en", premise
        yield "en", hypothesis


def pairs(data: Path, language: str) -> Iterator[tuple[str, str]]:
    """(English, other) of the sources that ``PAIR_LICENCES`` names; others are left out."""
    path = data / "parallel" / "more" / f"en-{language}.tsv"
    if not path.exists():
        return
    for line in lines(path):
        english, other, source = line.split("\t")
        if source in PAIR_LICENCES and is_translation(english, other):
            yield english, other


def is_translation(english: str, other: str) -> bool:
    """Not the same text twice, which interfaces keep for names and commands; nor a fragment."""
    if english.casefold() == other.casefold():
        return False
    sizes = len(english.encode()), len(other.encode())
    return max(sizes) <= 6 * min(sizes) and max(sizes) <= 1000


def commands(data: Path) -> Iterator[tuple[str, str]]:
    """(language, utterance) to a home assistant."""
    for path in sorted((data / "commands").glob("*.tsv")):
        for row in rows(path):
            yield _VARIANTS.get(path.stem, path.stem), row["text"]


def utterances(data: Path) -> list[str]:
    """Distinct English utterances to assistants, without their labels; train splits alone."""
    found: dict[str, None] = {}
    paths = [data / "xsid" / "train-en.tsv", *sorted((data / "intents").glob("*-train.tsv"))]
    for path in paths:
        found.update((row["text"], None) for row in rows(path))
    found.update((text, None) for language, text in commands(data) if language == "en")
    return list(found)


def entailment(data: Path) -> Iterator[Task]:
    """(premise, hypothesis, number of the label) of SNLI and MultiNLI."""
    for row in rows(data / "nli" / "train-en-large.tsv"):
        if row["source"] in ENTAILMENT_LICENCES:
            yield row["premise"], row["hypothesis"], ENTAILMENT_LABELS.index(row["label"])


def paraphrases(data: Path) -> Iterator[Task]:
    """(sentence, sentence, 1 for a paraphrase) of PAWS-Wiki's train split."""
    for row in rows(data / "pawsx" / "train-en.tsv"):
        yield row["sentence1"], row["sentence2"], int(row["label"])


def words(
    data: Path, language: str, often: Mapping[str, int] | None = None, most: int = 3
) -> list[tuple[str, str]]:
    """(English, other) of the free word lists, ``most`` translations of a word.

    They come without an order; ``often``, how many times the language's own text has a word, puts
    the usual ones first and drops what never occurs. Without it the shortest come first.
    """
    path = data / "lexicons" / "free" / f"en-{language}.tsv"
    if not path.exists():
        return []
    found: dict[str, list[str]] = defaultdict(list)
    for line in lines(path):
        english, other = line.split("\t")[:2]
        if english.lower() not in FUNCTION_WORDS and english != other and other.count(" ") <= 2:
            found[english].append(other)
    out: list[tuple[str, str]] = []
    for english, others in found.items():
        if often is None:
            kept = sorted(others, key=len)
        else:
            count = {o: min(often.get(w, 0) for w in o.lower().split() or [""]) for o in others}
            kept = sorted((o for o in others if count[o] > 1), key=lambda o: -count[o])
        out += [(english, other) for other in kept[:most]]
    return out


def word_counts(sentences: Iterator[str]) -> Counter[str]:
    """How often each word occurs, in lower case and without punctuation at its ends."""
    found: Counter[str] = Counter()
    for sentence in sentences:
        found.update(word.strip(".,;:!?\"'()«»„“”") for word in sentence.lower().split())
    return found
