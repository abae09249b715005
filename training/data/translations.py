"""Recorded machine translations of a task's train set, joined with its labels by id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from training.data.files import read_rows
from training.types import Example
from xlt_serve.errors import DataError

if TYPE_CHECKING:
    from training.method import Context


def translated_train(
    examples: Sequence[Example], context: Context, languages: Sequence[str]
) -> list[Example]:
    """The source examples in other languages, each with its source text and, where it was recorded,
    its round trip.

    ``TASK/mt/en-xx.train.tsv`` holds translations (columns id, text, and pair for tasks of pairs),
    ``xx-en.train.tsv`` translations back; an example that was not translated is left out. No
    languages: all that there are.
    """
    folder = context.data / context.task / "mt"
    ends = f"{context.source}-", ".train.tsv"
    found = sorted(folder.glob(f"{ends[0]}*{ends[1]}"))
    chosen = list(languages) or [f.name.removeprefix(ends[0]).removesuffix(ends[1]) for f in found]
    if not chosen:
        raise DataError(
            folder, f"has no translations of {context.task}'s train set", "record some there"
        )
    by_id = {example.id: example for example in examples}
    out = []
    for language in chosen:
        back_file = folder / f"{language}-{context.source}.train.tsv"
        back = {r["id"]: _texts(r) for r in read_rows(back_file)} if back_file.is_file() else {}
        for row in read_rows(folder / f"{ends[0]}{language}{ends[1]}"):
            if original := by_id.get(row["id"]):
                translated = original.with_texts(_texts(row))
                out.append(
                    replace(
                        translated,
                        language=language,
                        source=original.texts(),
                        round_trip=back.get(row["id"], ()),
                    )
                )
    return out


def _texts(row: dict[str, str]) -> tuple[str, ...]:
    return (row["text"], row["pair"]) if "pair" in row else (row["text"],)
