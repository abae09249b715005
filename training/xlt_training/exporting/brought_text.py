"""Text to judge a brought classifier on: the user's own file, or the sentences that ship."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from xlt_serve.errors import UsageError
from xlt_serve.evaluation import judging
from xlt_serve.files import labelled
from xlt_serve.files.labelled import Columns
from xlt_serve.files.rows import refuse
from xlt_training.data.sentences import sentences
from xlt_training.exporting.drawing import drawn
from xlt_training.exporting.gate import Text
from xlt_training.loop.model import Description
from xlt_training.loop.types import Example

UNJUDGED = "there are no labelled rows in its source language, give --file FILE --label COL"

MOST = 300
"""Texts of a language, as of a task."""


@dataclass(frozen=True)
class Rows:
    """A file, a folder or a pattern, and its columns; without ``label`` the texts have none."""

    file: str
    columns: Columns

    def check(self) -> None:
        if not self.file and self.columns != Columns(label=""):
            raise UsageError(
                "--text, --label, --pair", "name columns of --file", "give --file FILE"
            )


def text_of(
    description: Description, rows: Rows, languages: Sequence[str], of_interest: Sequence[str] = ()
) -> dict[str, Text]:
    """By language: those asked for; else those ``of_interest`` of which there is text; else all."""
    if rows.file:
        return given(description, rows, languages)
    liked = [language for language in of_interest if language in sentences()]
    return shipped(description, languages or liked)


def shipped(description: Description, languages: Sequence[str]) -> dict[str, Text]:
    """A pair is a sentence and the next one."""
    table = sentences()
    if unknown := sorted(set(languages) - set(table)):
        raise UsageError(
            f"--languages {','.join(unknown)}",
            f"the sentences that ship are in {', '.join(table)}",
            "leave them out, or give --file with text in them",
        )
    out = {}
    for language in languages or table:
        texts = table[language]
        pairs = [*texts[1:], texts[0]] if description.pair else [None] * len(texts)
        examples = [Example(a, "", language, b) for a, b in zip(texts, pairs, strict=True)]
        out[language] = Text([], examples)
    count = len(next(iter(out.values())).more)
    print(
        f"no --file: compared on the {count} sentences that ship for each of {', '.join(out)};"
        " they say nothing of how good the model is",
        file=sys.stderr,
    )
    return out


def given(description: Description, rows: Rows, languages: Sequence[str]) -> dict[str, Text]:
    """Up to ``MOST`` rows of each language, of each label its share."""
    bad: list[str] = []
    found = labelled.read(rows.file, rows.columns, description.source_language, bad)
    refuse(rows.file, bad, "mend them, or leave them out of the file")
    there = sorted({row.language for row in found})
    if absent := sorted(set(languages) - set(there)):
        raise UsageError(
            f"--languages {','.join(absent)}", f"the rows are in {', '.join(there)}", "leave it out"
        )
    found = [row for row in found if not languages or row.language in languages]
    if rows.columns.label:
        judging.refuse_others(found, description.labels, description.pair, rows.file)
    elif found and (found[0].pair is not None) != description.pair:
        kind = "pairs of texts: name the second column, --pair COL" if description.pair else "texts"
        raise UsageError(
            rows.file, f"the model reads {kind}", "leave --pair out" * (not description.pair)
        )
    out = {}
    for language, mine in judging.by_language(found).items():
        whole = [Example(r.text, r.label, language, r.pair, r.id) for r in mine]
        examples = drawn(whole, MOST)
        out[language] = Text(examples, [], len(whole)) if rows.columns.label else Text([], examples)
    return out
