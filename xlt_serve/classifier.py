"""Items in, predictions out: the one road that the CLI, the service and the scorer take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from xlt_serve import bundle as bundles
from xlt_serve import translation
from xlt_serve.bundle import Bundle
from xlt_serve.calibration import softmax
from xlt_serve.errors import BundleError, ItemError, UsageError
from xlt_serve.modes import paired
from xlt_serve.modes import smoothed as smoothing
from xlt_serve.runtime.graph_io import PairedRow
from xlt_serve.runtime.runners import Runners
from xlt_serve.runtime.session import Options, Session
from xlt_serve.runtime.steps import RunRequest, Steps, drive
from xlt_serve.text.language import detect
from xlt_serve.text.synonyms import Tables
from xlt_serve.text.tokens import LARGEST, Encoder, Piece, Tokens, check
from xlt_serve.translation import Translators
from xlt_serve.translation import items as renderings
from xlt_serve.translation.items import Renderer
from xlt_serve.types import (
    Failure,
    Item,
    Long,
    Pairing,
    Prediction,
    Rendering,
    Settings,
    Unrendered,
    Votes,
)

BUDGET, CPU_BUDGET = 4096, 512
"""Padded tokens in one run: enough to keep a GPU busy; on a CPU small enough for its caches (XLM-R-base
runs half as fast again in batches of 512 as in those of 4096)."""


@dataclass(frozen=True, slots=True)
class Job:
    """A valid item on its way: where it stands in the request, its tokens, its language."""

    index: int
    item: Item
    tokens: Tokens
    language: str | None


Prepared: TypeAlias = tuple[list[Job], dict[int, Prediction]]
"""The items that can be classified, and the answers to those that can't, by index."""


def _readable(side: object) -> TypeGuard[str]:
    return isinstance(side, str) and len(side) <= LARGEST


class Classifier:
    """A loaded bundle. ``predict`` may be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        options: Options | None = None,
        budget: int | None = None,
        translators: Translators | None = None,
        synonyms: Mapping[str, str | Path] | None = None,
    ) -> None:
        if budget is None:
            budget = default_budget(options.provider if options else "cpu")
        if budget < 1:
            raise UsageError(f"budget={budget}", "must be at least 1 token")
        manifest = bundle.manifest
        self.bundle, self.budget = bundle, budget
        self.renderer = Renderer(manifest.source_language, manifest.pair, translators)
        self.labels = manifest.labels
        self.encoder = Encoder(bundle.file(manifest.tokenizer), manifest.max_length)
        self.runners = Runners(bundle, options, budget)
        self.tables = Tables(bundle, synonyms)
        width = self.session.widths["logits"]
        if isinstance(width, int) and width != len(self.labels):
            raise BundleError(
                bundle.path,
                f"has {len(self.labels)} labels, its graph gives {width}",
                "export it again",
            )

    @property
    def session(self) -> Session:
        """That of the plain graph."""
        return self.runners.of("plain").session

    def sizes(self, items: Sequence[object]) -> list[int]:
        """Tokens of each item, before any is cut; 0 where it is no text, or one too large to be read.
        For sorting: nothing runs."""
        sides = [item if isinstance(item, tuple | list) else (item,) for item in items]
        texts = [side for pair in sides for side in pair if _readable(side)]
        counted = iter(self.encoder.ids(texts))
        return [sum(len(next(counted)) if _readable(s) else 0 for s in pair) for pair in sides]

    def predict(self, items: Iterable[object], **settings: Any) -> list[Prediction]:
        """One prediction for each item, in order; an item's own error is a value in its place.

        ``items`` are texts, or tuples of two where the bundle classifies pairs; ``settings`` are the
        fields of ``Settings``. With ``mode="smoothed"`` the label is the winner of a vote under
        noise (see ``Smoothing``), and there is none if the vote is too close. With ``mode="paired"``
        a text and its translation are predicted together, with ``mode="translate"`` the translation
        alone.
        """
        if isinstance(items, str):
            raise UsageError("a single text", "predict takes a list", "write predict([text])")
        items, asked = list(items), Settings(**settings)
        self.refuse_unfit(asked)
        if asked.mode not in renderings.MODES:
            return drive(self.steps(items, asked), self.runners.run)
        ready = self.renderer.under_way(items, asked, hurry=True)
        try:
            prepared = self._prepared(items, asked)  # while the engines translate
            whole = ready.result()
        except BaseException:
            ready.cancel()
            raise
        return drive(self.steps(items, whole, prepared), self.runners.run)

    def steps(
        self, items: Sequence[object], settings: Settings, prepared: Prepared | None = None
    ) -> Steps[list[Prediction]]:
        """The same as steps: tokenising first, unless that is done, then what is asked of the graphs.

        Steps translate nothing: ``settings`` come from ``renderer.under_way`` or its siblings.
        """
        self.refuse_unfit(settings)
        settings = self.renderer.as_it_is(items, settings)
        jobs, out = prepared or self._prepared(items, settings)
        if settings.mode == "smoothed":
            answers = yield from self._smoothed(jobs, settings)
        elif settings.mode in renderings.MODES:
            answers = yield from self._rendered(jobs, renderings.given(items, settings), settings)
        else:
            answers = yield from self._plain(jobs, settings)
        for job, answer in zip(jobs, answers, strict=True):
            out[job.index] = answer
        return [out[index] for index in range(len(items))]

    def refuse_unfit(self, settings: Settings) -> None:
        """Raise a UsageError where this bundle lacks what the mode needs."""
        if settings.mode == "smoothed":
            smoothing.refuse_unfit(self.bundle, self.tables, settings.smoothing, settings.language)
        if settings.mode == "paired":
            paired.refuse_unfit(self.bundle)

    def logits(self, pieces: Sequence[Piece]) -> npt.NDArray[np.float32]:
        """[pieces, labels], in order, whatever the batches were."""
        if not pieces:
            return np.zeros((0, len(self.labels)), dtype=np.float32)
        logits: npt.NDArray[np.float32] = self.runners.run(RunRequest("plain", pieces))["logits"]
        return logits

    def _prepared(self, items: Sequence[object], settings: Settings) -> Prepared:
        """Checked and tokenised."""
        failed: dict[int, Prediction] = {}
        valid: list[tuple[int, Item]] = []
        for index, item in enumerate(items):
            try:
                valid.append((index, check(item, self.bundle.manifest.pair)))
            except ItemError as error:
                failed[index] = self._failed(error, settings.mode)
        encoded = self.encoder.encode(
            [item for _, item in valid], cast(Long, settings.long), settings.max_length
        )
        jobs: list[Job] = []
        for (index, item), tokens in zip(valid, encoded, strict=True):
            if isinstance(tokens, ItemError):
                failed[index] = self._failed(tokens, settings.mode)
            else:
                text = item if isinstance(item, str) else " ".join(item)
                jobs.append(Job(index, item, tokens, settings.language or detect(text).language))
        return jobs, failed

    def _plain(self, jobs: Sequence[Job], settings: Settings) -> Steps[list[Prediction]]:
        """Calibrated probabilities of each job: the token-weighted mean over its windows."""
        pieces = [piece for job in jobs for piece in job.tokens.pieces]
        if not pieces:
            return []
        outputs = yield RunRequest("plain", pieces)
        rows = softmax(outputs["logits"], self.bundle.manifest.temperature("plain"))
        out, start = [], 0
        for job in jobs:
            end = start + len(job.tokens.pieces)
            weights = np.array([piece.length for piece in job.tokens.pieces], dtype=np.float64)
            out.append(self._answer(job, weights @ rows[start:end] / weights.sum(), settings))
            start = end
        return out

    def _smoothed(self, jobs: Sequence[Job], settings: Settings) -> Steps[list[Prediction]]:
        texts = [smoothing.Text(job.item, job.tokens.pieces[0], job.language) for job in jobs]

        def cut(items: Sequence[Item]) -> list[Piece]:
            encoded = self.encoder.encode(items, max_length=settings.max_length)
            return [tokens.pieces[0] for tokens in encoded if not isinstance(tokens, ItemError)]

        answers = yield from smoothing.votes(
            self.bundle, self.tables, texts, cut, settings.smoothing
        )
        return [
            self._failed(answer, settings.mode)
            if isinstance(answer, ItemError)
            else self._voted(job, *answer, settings.top_k)
            for job, answer in zip(jobs, answers, strict=True)
        ]

    def _rendered(
        self, jobs: Sequence[Job], entries: Sequence[object], settings: Settings
    ) -> Steps[list[Prediction]]:
        """With the translation where there is one; elsewhere as it is, with the reason, or failed."""
        out: dict[int, Prediction] = {}
        found: dict[int, Rendering | Unrendered] = {}
        for job in jobs:
            try:
                found[job.index] = renderings.rendered(
                    entries[job.index], self.bundle.manifest.pair
                )
            except ItemError as error:
                out[job.index] = self._failed(error, settings.mode)
        read = self._read({i: r for i, r in found.items() if isinstance(r, Rendering)}, settings)
        ready: list[tuple[Job, Rendering]] = []
        paired_up: list[tuple[Job, Tokens]] = []
        bare: list[tuple[Job, Unrendered]] = []
        for job in jobs:
            rendering, tokens = found.get(job.index), read.get(job.index)
            if isinstance(rendering, Rendering) and isinstance(tokens, Tokens):
                ready.append((job, rendering))
                paired_up.append((job, tokens))
            elif rendering is not None:
                why = rendering if isinstance(rendering, Unrendered) else renderings.UNREADABLE
                if settings.require_translation:
                    missing = ItemError("untranslated", job.language or "unknown", why.message)
                    out[job.index] = self._failed(missing, settings.mode)
                else:
                    bare.append((job, why))
        predict = self._mixed if settings.mode == "paired" else self._translations_alone
        answers = yield from predict(paired_up, settings)
        for (job, rendering), (answer, ratio) in zip(ready, answers, strict=True):
            mixed = True if settings.mode == "paired" else None
            told = Pairing(mixed, ratio, rendering.item, rendering.translator, rendering.quality)
            out[job.index] = replace(answer, mode=settings.mode, pairing=told)
        plain = yield from self._plain([job for job, _ in bare], settings)
        for (job, why), answer in zip(bare, plain, strict=True):
            mixed = False if settings.mode == "paired" else None
            out[job.index] = replace(answer, pairing=Pairing(mixed, reason=why))
        return [out[job.index] for job in jobs]

    def _read(
        self, found: dict[int, Rendering], settings: Settings
    ) -> dict[int, Tokens | ItemError]:
        """The tokens of each rendering; an error where the tokenizer finds nothing in it."""
        items = [rendering.item for rendering in found.values()]
        encoded = self.encoder.encode(items, "truncate", settings.max_length)
        return dict(zip(found, encoded, strict=True))

    def _mixed(
        self, jobs: Sequence[tuple[Job, Tokens]], settings: Settings
    ) -> Steps[list[tuple[Prediction, float | None]]]:
        rows = [PairedRow(job.tokens.pieces[0], source.pieces[0]) for job, source in jobs]
        answers = yield from paired.mixed(self.bundle, rows)
        return [
            (
                replace(
                    self._answer(job, answer.probabilities, settings, paired.GRAPH),
                    truncated=job.tokens.truncated or source.truncated,
                ),
                answer.ratio,
            )
            for (job, source), answer in zip(jobs, answers, strict=True)
        ]

    def _translations_alone(
        self, jobs: Sequence[tuple[Job, Tokens]], settings: Settings
    ) -> Steps[list[tuple[Prediction, float | None]]]:
        answers = yield from self._plain(
            [replace(job, tokens=source) for job, source in jobs], settings
        )
        return [(answer, None) for answer in answers]

    def _answer(
        self,
        job: Job,
        probabilities: npt.NDArray[np.float64],
        settings: Settings,
        graph: str = "plain",
    ) -> Prediction:
        least = settings.abstain_below
        if least is None:
            least = self.bundle.manifest.abstain_below(graph)
        best = int(probabilities.argmax())
        unsure = least is not None and probabilities[best] < least
        return Prediction(
            label=None if unsure else self.labels[best],
            probabilities=largest(
                {name: float(p) for name, p in zip(self.labels, probabilities, strict=True)},
                settings.top_k,
            ),
            language=job.language,
            tokens=job.tokens.count,
            truncated=job.tokens.truncated,
            windows=len(job.tokens.pieces),
            abstained="confidence" if unsure else None,
            bundle=self.bundle.manifest.name,
            version=self.bundle.manifest.version,
        )

    def _voted(self, job: Job, best: int | None, votes: Votes, top_k: int | None) -> Prediction:
        shares = {name: count / max(1, votes.draws) for name, count in votes.votes.items()}
        return Prediction(
            label=None if best is None else self.labels[best],
            probabilities=largest(shares, top_k),
            language=job.language,
            tokens=job.tokens.count,
            truncated=job.tokens.truncated,
            mode="smoothed",
            abstained="votes" if best is None else None,
            smoothed=votes,
            bundle=self.bundle.manifest.name,
            version=self.bundle.manifest.version,
        )

    def _failed(self, error: ItemError, mode: str) -> Prediction:
        return Prediction(
            label=None,
            mode=mode,
            error=Failure(error.code, str(error)),
            bundle=self.bundle.manifest.name,
            version=self.bundle.manifest.version,
        )


def load(
    name_or_path: str | Path | None = None,
    *,
    threads: int = 0,
    provider: str = "cpu",
    budget: int | None = None,
    translators: Translators | str | Path | None = None,
    synonyms: Mapping[str, str | Path] | None = None,
) -> Classifier:
    """A classifier from a shipped name, else a folder, never a download; no argument: the default.

    ``translators`` for the modes paired and translate: a TOML file of them, or what it loads into.
    ``synonyms``: language → file of a table (``xlt_serve.text.synonyms``), before the bundle's own.
    """
    if isinstance(translators, str | Path):
        translators = translation.load(Path(translators))
    options = Options(threads, provider)
    return Classifier(bundles.load(name_or_path), options, budget, translators, synonyms)


def default_budget(provider: str) -> int:
    return CPU_BUDGET if provider == "cpu" else BUDGET


def largest(probabilities: dict[str, float], count: int | None) -> dict[str, float]:
    """All in the order of the labels, or only so many, the largest first."""
    if count is None:
        return probabilities
    return dict(sorted(probabilities.items(), key=lambda entry: -entry[1])[:count])
