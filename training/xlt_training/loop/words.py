"""Words of a text: what methods that replace, swap or align them share."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from xlt_serve.errors import DataError, UsageError
from xlt_serve.text import synonyms, words
from xlt_serve.text.synonyms import Draws
from xlt_serve.text.words import rewrite
from xlt_training.loop.method import Context

__all__ = ["Table", "load_lexicons", "load_synonyms", "redraw", "refuse_unspaced", "rewrite"]

Table = Mapping[str, Sequence[str]]


def refuse_unspaced(method: str, language: str) -> None:
    """Methods that work on words need spaces between them."""
    words.refuse_unspaced(
        f"{method} with texts in",
        language,
        "train on another source language, or without this method",
    )


def redraw(text: str, table: Table, generator: random.Random) -> str:
    """Each word that has neighbours is drawn anew from itself and them, all alike."""

    def choose(word: str) -> str:
        neighbours = table.get(word)
        return generator.choice([word, *neighbours]) if neighbours else word

    return rewrite(text, choose)


def synonyms_file(file: str, lexicons: Path, source: str) -> Path:
    """``file``, or if that is "", ``SOURCE-synonyms.json`` among the lexicons."""
    return Path(file) if file else lexicons / f"{source}-synonyms.json"


def load_synonyms(
    file: str, context: Context, share: float = 1.0, draws: Draws = "neighbours"
) -> dict[str, list[str]]:
    """Word → what else it may be drawn as, of a table as ``xlt_serve.text.synonyms`` documents it: its raw
    lists, or the groups that are served. ``share`` of its words, drawn by the run's seed."""
    if not 0 < share <= 1:
        raise UsageError(f"dictionary_scale={share}", "must be in (0, 1]")
    path = synonyms_file(file, context.lexicons, context.source)
    if not path.is_file():
        raise DataError(path, "is not there", "give the method a table = 'synonyms.json'")
    lists = synonyms.read(path, context.source).lists(draws)
    chosen = sorted(lists)
    if share < 1:
        chosen = random.Random(context.seed).sample(chosen, max(1, round(share * len(chosen))))
    return {word: list(lists[word]) for word in chosen}


def load_lexicons(
    folder: Path, source: str, languages: Sequence[str]
) -> dict[str, dict[str, list[str]]]:
    """language → source word → translations, from ``SOURCE-LANGUAGE.tsv`` in the folder.

    Only single words: a text keeps its number of words, and so the alignment, when it is switched.
    """
    out: dict[str, dict[str, list[str]]] = {}
    chosen = list(languages) or [
        path.stem.partition("-")[2] for path in sorted(folder.glob(f"{source}-*.tsv"))
    ]
    for language in chosen:
        path = folder / f"{source}-{language}.tsv"
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
        raise DataError(
            folder, f"has no dictionary {source}-xx.tsv", "name their folder: task.lexicons"
        )
    return out
