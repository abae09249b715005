"""What a classifier says of texts, labelled or not, counted language by language in one go.

Of each text a few numbers are kept, never the text: files of any size.
"""

from __future__ import annotations

import contextlib
import itertools
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from xlt_serve.classifier import Classifier
from xlt_serve.errors import ItemError
from xlt_serve.evaluation.distance import TextSummary
from xlt_serve.evaluation.estimates import Known
from xlt_serve.evaluation.sampling import LabelCandidates
from xlt_serve.files.labelled import Labelled, Stated
from xlt_serve.modes.base import Asked
from xlt_serve.runtime.steps import RowOutputs, RunRequest, drive
from xlt_serve.text.language import detect
from xlt_serve.text.words import UNSPACED
from xlt_serve.translation.items import primary
from xlt_serve.types import Prediction, Settings

CHUNK = 2048
"""Rows that are held at a time."""
LEAST = 20
"""Labels of a language, or answers beside those to translations, from which on they say something of it."""
UNKNOWN, OTHERS = "unknown", "others"
"""In place of a language: of texts that don't tell theirs, and of those in which few texts seem to be."""
RARE = 0.005
"""Share of the rows below which a language that no row names may well be a mistake."""
NOTHING = -1
"""Of a row without a label, or without a translation."""


@dataclass
class Observed:
    """One language, an entry for each row: ``confidence`` in the likeliest label (0 where the row failed),
    whether that label is ``right``, and whether it ``agrees`` with that of the translation. ``named``: rows
    say their language themselves. ``strange``: labels of rows that the classifier does not have."""

    candidates: LabelCandidates
    named: bool = False
    confidence: array[float] = field(default_factory=lambda: array("d"))
    right: array[int] = field(default_factory=lambda: array("b"))
    agrees: array[int] = field(default_factory=lambda: array("b"))
    failed: int = 0
    abstained: int = 0
    tokens: int = 0
    words: int = 0
    pieces: int = 0
    unknown: int = 0
    distances: array[float] = field(default_factory=lambda: array("d"))
    strange: int = 0

    @property
    def rows(self) -> int:
        return len(self.confidence)

    def agreement(self, labelled: bool = False) -> float | None:
        """Over the rows that were translated, or those of them that have a label."""
        agrees = np.array(self.agrees)
        there = agrees != NOTHING
        if labelled:
            there &= np.array(self.right) != NOTHING
        chosen = agrees[there]
        return float(chosen.mean()) if len(chosen) >= LEAST else None

    def known(self) -> Known | None:
        """What the labelled rows say, if there are enough."""
        right = np.array(self.right)
        there = right != NOTHING
        if there.sum() < LEAST:
            return None
        confidence = np.array(self.confidence)[there]
        return Known(confidence, self.agreement(labelled=True), float(right[there].mean()))

    def add(self, other: Observed) -> None:
        """The rows of another language, which are counted with these; not its candidates."""
        for name, value in vars(other).items():
            if name not in ("candidates", "named"):
                setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class Observer:
    """``summary``: of the training text, where the bundle has one. ``count`` and ``seed``: of the texts to
    label."""

    classifier: Classifier
    settings: Settings
    summary: TextSummary | None
    count: int = 0
    seed: int = 0

    @cached_property
    def unknown(self) -> int | None:
        """The piece that stands for what the vocabulary lacks."""
        return self.classifier.encoder.unknown

    def observe(
        self, rows: Iterable[Stated], progress: Callable[[int], object] = lambda done: None
    ) -> dict[str, Observed]:
        """By language, in alphabetical order; rows that name none are in that which they look like."""
        out: dict[str, Observed] = defaultdict(
            lambda: Observed(LabelCandidates(self.count, self.seed))
        )
        for chunk in _chunks(rows):
            parts: dict[str, list[Stated]] = defaultdict(list)
            for stated in chunk:
                parts[language_of(stated.row)].append(stated)
            for language, mine in parts.items():
                out[language].named |= any(stated.row.language for stated in mine)
                self._part(language, mine, out[language])
                progress(len(mine))
        return dict(sorted(out.items()))

    def _part(self, language: str, rows: Sequence[Stated], seen: Observed) -> None:
        told = None if language == UNKNOWN else language
        settings = replace(self.settings, language=told)
        runs: list[tuple[Sequence[Any], RowOutputs]] = []

        def run(request: RunRequest) -> RowOutputs:
            outputs = self.classifier.runners.run(request)
            runs.append((request.rows, outputs))
            return outputs

        items = [stated.row.item for stated in rows]
        predictions = drive(self.classifier.steps(Asked(items, settings)), run)
        labels = self.classifier.labels
        best = [_best(found) for found in predictions]
        translated = self._translated(items, language)
        for stated, found, mine, other in zip(rows, predictions, best, translated, strict=True):
            _count(seen, stated.row, found, mine, labels)
            seen.agrees.append(NOTHING if not mine or not other else int(mine == other))
            if self.count and mine and not stated.row.label:
                seen.candidates.add(_margin(found), stated)
        special = self.classifier.encoder.special(1 + self.classifier.bundle.manifest.pair)
        _count_words(seen, language, items, predictions, special)
        for pieces, outputs in runs:
            self._count_pieces(seen, pieces, outputs, special)

    def _translated(self, items: Sequence[object], language: str) -> list[str]:
        """The label of each item's translation; "" where it has none, or needs none."""
        source = self.classifier.bundle.manifest.source_language
        if self.classifier.translators is None or primary(language) == primary(source):
            return [""] * len(items)
        told = None if language == UNKNOWN else language
        settings = replace(self.settings, mode="translate", language=told)
        (found,) = self.classifier.predict_batches([items], settings)
        there = [
            each.pairing is not None and each.pairing.translation is not None for each in found
        ]
        return [_best(each) if yes else "" for each, yes in zip(found, there, strict=True)]

    def _count_pieces(
        self, seen: Observed, pieces: Sequence[Any], outputs: RowOutputs, special: int
    ) -> None:
        seen.pieces += sum(len(piece.ids) - special for piece in pieces)
        if self.unknown is not None:
            seen.unknown += sum(piece.ids.count(self.unknown) for piece in pieces)
        if self.summary is None:
            return
        values = []
        for number in range(len(pieces)):
            with contextlib.suppress(ItemError):  # no finite output: the row has failed
                values.append(outputs.rows(number, number + 1)[self.summary.output])
        if values:
            seen.distances.extend(self.summary.distances(np.concatenate(values)))


def folded(found: dict[str, Observed]) -> dict[str, Observed]:
    """Languages that no row names, and few rows seem to be in, counted together."""
    least = RARE * sum(each.rows for each in found.values())
    out: dict[str, Observed] = {}
    for language, each in found.items():
        if each.named or language == UNKNOWN or each.rows >= least:
            out[language] = each
        else:
            out.setdefault(OTHERS, Observed(LabelCandidates(0, 0))).add(each)
    return out


def language_of(row: Labelled) -> str:
    """As it says itself, or as it looks."""
    if row.language:
        return row.language
    text = row.text if row.pair is None else f"{row.text} {row.pair}"
    return detect(text).language or UNKNOWN


def _count(
    seen: Observed, row: Labelled, found: Prediction, best: str, labels: Sequence[str]
) -> None:
    seen.failed += not best
    seen.abstained += found.abstained is not None
    seen.strange += bool(row.label) and row.label not in labels
    seen.confidence.append(found.probabilities[best] if best else 0.0)
    seen.right.append(int(best == row.label) if row.label else NOTHING)


def _count_words(
    seen: Observed,
    language: str,
    items: Sequence[str | tuple[str, str]],
    predictions: Sequence[Prediction],
    special: int,
) -> None:
    """Not of languages that are written without spaces."""
    if primary(language) in UNSPACED:
        return
    for item, found in zip(items, predictions, strict=True):
        if found.error is None:
            seen.tokens += found.tokens - special
            seen.words += len((item if isinstance(item, str) else " ".join(item)).split())


def _best(found: Prediction) -> str:
    """The likeliest label, given or not; "" where the text failed."""
    if found.error is not None:
        return ""
    return max(found.probabilities, key=lambda label: found.probabilities[label])


def _margin(found: Prediction) -> float:
    first, *others = sorted(found.probabilities.values(), reverse=True)
    return first - others[0] if others else first


def _chunks(rows: Iterable[Stated]) -> Iterator[list[Stated]]:
    rows = iter(rows)
    while chunk := list(itertools.islice(rows, CHUNK)):
        yield chunk
