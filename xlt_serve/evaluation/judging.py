"""A classifier on labelled rows, language by language."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from xlt_serve.classifier import Classifier
from xlt_serve.errors import UsageError
from xlt_serve.evaluation.answers import Answers, answers, joined
from xlt_serve.files.labelled import Labelled
from xlt_serve.types import Settings

CHUNK = 512
"""Rows that are predicted at a time."""

MOST_STRANGE = 1000
"""Labels of the rows that the model may lack; more are no labels."""

Progress = Callable[[int], object]
"""Told how many rows are done."""


def judged(
    classifier: Classifier,
    rows: Sequence[Labelled],
    settings: Settings,
    progress: Progress = lambda done: None,
) -> dict[str, Answers]:
    """Each language's rows, told to be of that language."""
    refuse_others(rows, classifier.labels, classifier.bundle.manifest.pair, classifier.name)
    out = {}
    for language, mine in by_language(rows).items():
        here = replace(settings, language=language, top_k=None)
        parts: list[Answers] = []
        done = 0
        for predictions in classifier.predict_batches(_chunks(mine), here):
            # Their numbers alone: a million predictions would take gigabytes.
            after = done + len(predictions)
            parts.append(answers(classifier.labels, mine[done:after], predictions))
            done = after
            progress(len(predictions))
        out[language] = joined(parts)
    return out


def by_language(rows: Sequence[Labelled]) -> dict[str, list[Labelled]]:
    """In alphabetical order; rows of a language that share an id are told apart."""
    out: dict[str, list[Labelled]] = defaultdict(list)
    seen: Counter[tuple[str, str]] = Counter()
    for row in rows:
        seen[row.language, row.id] += 1
        again = seen[row.language, row.id]
        out[row.language].append(row if again == 1 else replace(row, id=f"{row.id} ({again})"))
    return dict(sorted(out.items()))


def refuse_others(
    rows: Sequence[Labelled], labels: Sequence[str], pair: bool, model: object
) -> None:
    """Rows of another task would all be wrong without a word."""
    if not rows:
        raise UsageError("no rows", "there is nothing to judge by", "check the languages")
    if (rows[0].pair is not None) != pair:
        kinds = ("pairs", "single texts") if pair else ("single texts", "pairs")
        raise UsageError(
            model,
            f"classifies {kinds[0]}, the rows are {kinds[1]}",
            "name the columns: --text, --pair",
        )
    there = {row.label for row in rows}
    if len(there - set(labels)) > MOST_STRANGE:
        raise UsageError(
            model,
            f"has none of {len(there - set(labels))} labels of the rows",
            "name their column: --label",
        )
    if not there & set(labels):
        shown = ", ".join(sorted(there)[:3])
        raise UsageError(model, f"has none of the rows' labels ({shown}); its own: {labels[0]}, …")


def _chunks(rows: Sequence[Labelled]) -> Iterator[list[object]]:
    items = (row.item for row in rows)
    while chunk := list(itertools.islice(items, CHUNK)):
        yield list(chunk)
