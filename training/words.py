"""Words of a text: what methods that replace, swap or align them share."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from training.method import Context
from xlt_serve.errors import DataError, UsageError

UNSPACED = frozenset({"zh", "ja", "th", "km", "lo", "my"})

Table = Mapping[str, Sequence[str]]


def refuse_unspaced(method: str, language: str) -> None:
    """Methods that work on words need spaces between them."""
    if language in UNSPACED:
        raise UsageError(
            f"{method} with texts in {language}",
            "works on words, and this language is written without spaces",
            "train on another source language, or without this method",
        )


def rewrite(text: str, choose: Callable[[str], str]) -> str:
    """``text`` with ``choose`` applied to each word in lower case; case and punctuation are kept.

    A word for which ``choose`` gives the word itself stays as it was, to the letter.
    """
    out = []
    for word in text.split():
        before, core, after = _parts(word)
        chosen = choose(core.lower()) if core else core
        out.append(word if chosen == core.lower() else before + _like(core, chosen) + after)
    return " ".join(out)


def _parts(word: str) -> tuple[str, str, str]:
    """What stands before a word's letters, they, and what stands after them. Vowel signs are part of
    a word, so punctuation is told by its Unicode category."""
    inner = [i for i, c in enumerate(word) if unicodedata.category(c)[0] not in "PSZC"]
    if not inner:
        return word, "", ""
    return word[: inner[0]], word[inner[0] : inner[-1] + 1], word[inner[-1] + 1 :]


def _like(model: str, word: str) -> str:
    if model.isupper() and len(model) > 1:
        return word.upper()
    return word[:1].upper() + word[1:] if model[:1].isupper() else word


def redraw(text: str, table: Table, generator: random.Random) -> str:
    """Each word that has neighbours is drawn anew from itself and them, all alike."""

    def choose(word: str) -> str:
        neighbours = table.get(word)
        return generator.choice([word, *neighbours]) if neighbours else word

    return rewrite(text, choose)


def load_synonyms(file: str, context: Context, share: float = 1.0) -> dict[str, list[str]]:
    """A word → neighbours table (JSON); ``share`` of its words, drawn by the run's seed.

    ``file`` "": ``lexicons/SOURCE-synonyms.json`` in the data folder.
    """
    if not 0 < share <= 1:
        raise UsageError(f"dictionary_scale={share}", "must be in (0, 1]")
    path = Path(file) if file else context.data / "lexicons" / f"{context.source}-synonyms.json"
    try:
        table: dict[str, dict[str, None]] = {}
        for word, near in json.loads(path.read_text(encoding="utf-8")).items():
            mine = table.setdefault(word.lower(), {})
            mine.update((n.lower(), None) for n in near if n.lower() != word.lower())
    except FileNotFoundError:
        raise DataError(path, "is not there", "give the method a table = 'synonyms.json'") from None
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError, TypeError) as error:
        raise DataError(path, f"is not a JSON object of word lists ({error})") from None
    words = sorted(word for word, near in table.items() if near)
    if share < 1:
        words = random.Random(context.seed).sample(words, max(1, round(share * len(words))))
    return {word: list(table[word]) for word in words}


def load_lexicons(
    data: Path, source: str, languages: Sequence[str]
) -> dict[str, dict[str, list[str]]]:
    """language → source word → translations, from ``lexicons/SOURCE-LANGUAGE.tsv``.

    Only single words: a text keeps its number of words, and so the alignment, when it is switched.
    """
    out: dict[str, dict[str, list[str]]] = {}
    chosen = list(languages) or [
        path.stem.partition("-")[2] for path in sorted((data / "lexicons").glob(f"{source}-*.tsv"))
    ]
    for language in chosen:
        path = data / "lexicons" / f"{source}-{language}.tsv"
        if not path.is_file():
            raise DataError(path, "is not there", "name languages that have a dictionary")
        table: dict[str, list[str]] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(path, f"is not valid UTF-8 (byte {error.start})") from None
        for line in lines:
            word, tab, translation = line.partition("\t")
            if tab and translation and len(translation.split()) == 1:
                table.setdefault(word.lower(), []).append(translation)
        out[language] = table
    if not out:
        raise DataError(data / "lexicons", f"has no dictionary {source}-xx.tsv")
    return out
