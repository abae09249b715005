"""Words of a text: what methods that replace, swap or align them share."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from xlt_serve.errors import DataError, UsageError
from xlt_serve.files.labelled import Place, files_of
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


def synonyms_file(file: str, lexicons: Place | Path, source: str) -> Path | None:
    """``file``, or if that is "", ``SOURCE-synonyms.json`` among the lexicons; None: they have no folder."""
    if file:
        return Path(file)
    folder = None if isinstance(lexicons, Mapping) or "{" in str(lexicons) else Path(lexicons)
    return None if folder is None else folder / f"{source}-synonyms.json"


def load_synonyms(
    file: str, context: Context, share: float = 1.0, draws: Draws = "neighbours"
) -> dict[str, list[str]]:
    """Word → what else it may be drawn as, of a table as ``xlt_serve.text.synonyms`` documents it: its raw
    lists, or the groups that are served. ``share`` of its words, drawn by the run's seed."""
    if not 0 < share <= 1:
        raise UsageError(f"dictionary_scale={share}", "must be in (0, 1]")
    path = synonyms_file(file or context.synonyms, context.lexicons, context.source)
    if path is None or not path.is_file():
        key = "the method's table" if file else "task.synonyms"
        remedy = f"name the table of {context.source!r}: task.synonyms = 'synonyms.json'"
        raise DataError(f"{key}: {path}" if path else key, "is not there", remedy)
    lists = synonyms.read(path, context.source).lists(draws)
    chosen = sorted(lists)
    if share < 1:
        chosen = random.Random(context.seed).sample(chosen, max(1, round(share * len(chosen))))
    return {word: list(lists[word]) for word in chosen}


def load_lexicons(
    place: Place | Path, source: str, languages: Sequence[str]
) -> dict[str, dict[str, list[str]]]:
    """language → source word → translations, from files of two columns apart by a tab, without header.

    Only single words: a text keeps its number of words, and so the alignment, when it is switched.
    """
    out: dict[str, dict[str, list[str]]] = {}
    files = lexicon_files(place, source)
    for language in languages or files:
        path = files.get(language)
        if path is None or not path.is_file():
            have = ", ".join(files) or "none"
            if path is None and not isinstance(place, Mapping):
                path = Path(place) / f"{source}-{language}.tsv"
            raise DataError(
                f"task.lexicons: {path or place}",
                f"is not there in {language!r}; there are: {have}",
                "name languages that have a dictionary",
            )
        table: dict[str, list[str]] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(
                f"task.lexicons: {path}", f"is not valid UTF-8 (byte {error.start})", "save it so"
            ) from None
        for line in lines:
            word, tab, translation = line.partition("\t")
            if tab and translation and len(translation.split()) == 1:
                table.setdefault(word.lower(), []).append(translation)
        if not table:
            raise DataError(
                f"task.lexicons: {path}",
                "has no line of two words apart by a tab",
                f"write {source} word, tab, {language} word on each line",
            )
        out[language] = table
    if not out:
        raise DataError(
            f"task.lexicons: {place}",
            f"has no dictionary {source}-xx.tsv",
            "name their folder: task.lexicons",
        )
    return out


def lexicon_files(place: Place | Path, source: str) -> dict[str, Path]:
    """language → its word list: of a table or pattern as ``files_of`` has it, else ``SOURCE-LANGUAGE.tsv``
    in a folder."""
    if isinstance(place, Mapping):
        return files_of(place)
    if "{language}" in str(place):
        return files_of(str(place))
    found = {p.stem.partition("-")[2]: p for p in sorted(Path(place).glob(f"{source}-*.tsv"))}
    found.pop("synonyms", None)
    return found
