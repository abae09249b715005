"""Recorded machine translations of a task's train set, joined with its labels by id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from xlt_serve.errors import DataError
from xlt_serve.files.rows import read_rows
from xlt_serve.translation.recording import source_hash
from xlt_training.loop.types import Example

if TYPE_CHECKING:
    from xlt_training.data.task_config import TaskConfig
    from xlt_training.loop.method import Context


def translated_train(
    examples: Sequence[Example], context: Context, languages: Sequence[str]
) -> list[Example]:
    """The source examples in other languages, each with its source text and, where it was recorded,
    its round trip.

    ``en-xx.train.tsv`` in the folder holds translations (columns id, text, and pair for tasks of pairs;
    ``source_hash`` where ``xlt translate`` made it), ``xx-en.train.tsv`` translations back; an example that
    was not translated is left out. No languages: all that there are.
    """
    folder = context.translations
    ends = f"{context.source}-", ".train.tsv"
    found = sorted(folder.glob(f"{ends[0]}*{ends[1]}"))
    chosen = list(languages) or [f.name.removeprefix(ends[0]).removesuffix(ends[1]) for f in found]
    if not chosen:
        raise DataError(
            folder,
            "has no translations of the train set",
            f"record some there ({ends[0]}de{ends[1]}) with xlt translate, or name their folder: "
            "task.translations",
        )
    by_id: dict[str, Example] = {}
    for example in examples:
        if example.language == context.source:
            by_id.setdefault(example.id, example)  # the original comes before its copies
    pair = next(iter(by_id.values())).pair is not None
    out = []
    for language in chosen:
        back_file = folder / f"{language}-{context.source}.train.tsv"
        back = _translations(back_file, pair) if back_file.is_file() else {}
        forth_file = folder / f"{ends[0]}{language}{ends[1]}"
        forth = _translations(forth_file, pair)
        if not by_id.keys() & forth.keys():
            raise DataError(
                forth_file,
                "has no id of the train set",
                "translate it with xlt translate; ids are those of task.id, else rows' numbers from 0",
            )
        for number, (texts, made_of) in forth.items():
            if original := by_id.get(number):
                _refuse_other(forth_file, number, original.read_as or original.texts(), made_of)
                round_trip, back_of = back.get(number, ((), ""))
                _refuse_other(back_file, number, texts, back_of)
                translated = original.with_texts(texts)
                out.append(
                    replace(
                        translated,
                        language=language,
                        source=original.texts(),
                        round_trip=round_trip,
                    )
                )
    return out


def _refuse_other(file: Path, number: str, texts: tuple[str, ...], made_of: str) -> None:
    """Rows that move under their numbers would be paired with other texts' translations."""
    if made_of and made_of != source_hash(texts):
        raise DataError(
            f"{file}, id {number}",
            f"was translated from another text than {texts[0][:60]!r}",
            "run xlt translate again, which translates only what is new",
        )


def translated_source(task: TaskConfig, examples: Sequence[Example]) -> list[Example]:
    """The train examples of another language, machine-translated into the source language."""
    file = task.translation_folder / f"{task.translated_from}-{task.source}.train.tsv"
    if not file.is_file():
        raise DataError(
            file,
            "is not there",
            "record the translations there (columns id, text), or name their folder: task.translations",
        )
    texts = _translations(file, examples[0].pair is not None)
    for example in examples:
        if example.id in texts:
            _refuse_other(file, example.id, example.texts(), texts[example.id][1])
    return [
        replace(example.with_texts(texts[example.id][0]), language=task.source)
        for example in examples
        if example.id in texts
    ]


def _translations(file: Path, pair: bool) -> dict[str, tuple[tuple[str, ...], str]]:
    """id → text, or both texts of a pair; and the hash of what was translated, where it is known."""
    columns = ("id", "text", "pair") if pair else ("id", "text")
    rows = read_rows(file)
    if rows and (missing := [column for column in columns if column not in rows[0]]):
        raise DataError(file, f"has no column {missing[0]!r}; it has: {', '.join(rows[0])}")
    return {
        row["id"]: (tuple(row[column] for column in columns[1:]), row.get("source_hash", ""))
        for row in rows
    }
