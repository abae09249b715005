"""Items in, predictions out: the one road that the CLI, the service and the scorer take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from xlt_serve import bundle as bundles
from xlt_serve import smoothing
from xlt_serve.bundle import Bundle
from xlt_serve.calibrate import softmax
from xlt_serve.errors import BundleError, ItemError, UsageError
from xlt_serve.language import detect
from xlt_serve.runners import Runners
from xlt_serve.schema import Failure, Item, Long, Prediction, Settings, Votes
from xlt_serve.session import Options, Session
from xlt_serve.steps import Ask, Steps, drive
from xlt_serve.synonyms import Tables
from xlt_serve.tokens import Encoder, Piece, Tokens, check

BUDGET = 4096
"""Padded tokens in one run: enough to keep the cores busy, small enough for the caches."""


@dataclass(frozen=True, slots=True)
class Job:
    """A valid item on its way: where it stands in the request, its tokens, its language."""

    index: int
    item: Item
    tokens: Tokens
    language: str | None


class Classifier:
    """A loaded bundle. ``predict`` may be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        options: Options | None = None,
        budget: int = BUDGET,
        synonyms: Mapping[str, str | Path] | None = None,
    ) -> None:
        if budget < 1:
            raise UsageError(f"budget={budget}", "must be at least 1 token")
        manifest = bundle.manifest
        self.bundle, self.budget = bundle, budget
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

    def predict(self, items: Iterable[object], **settings: Any) -> list[Prediction]:
        """One prediction for each item, in order; an item's own error is a value in its place.

        ``items`` are texts, or tuples of two where the bundle classifies pairs; ``settings`` are the
        fields of ``Settings``. With ``mode="smoothed"`` the label is the winner of a vote under
        noise (see ``Smoothing``), and there is none if the vote is too close.
        """
        if isinstance(items, str):
            raise UsageError("a single text", "predict takes a list", "write predict([text])")
        return drive(self.steps(list(items), Settings(**settings)), self.runners.run)

    def steps(self, items: Sequence[object], settings: Settings) -> Steps[list[Prediction]]:
        """The same as steps: tokenising first, then what is asked of the graphs."""
        if settings.mode == "smoothed":
            smoothing.refuse_unfit(self.bundle, self.tables, settings.smoothing, settings.language)
        jobs, out = self._prepared(items, settings)
        if settings.mode == "smoothed":
            answers = yield from self._smoothed(jobs, settings)
        else:
            answers = yield from self._plain(jobs, settings)
        for job, answer in zip(jobs, answers, strict=True):
            out[job.index] = answer
        return [out[index] for index in range(len(items))]

    def logits(self, pieces: Sequence[Piece]) -> npt.NDArray[np.float32]:
        """[pieces, labels], in order, whatever the batches were."""
        if not pieces:
            return np.zeros((0, len(self.labels)), dtype=np.float32)
        logits: npt.NDArray[np.float32] = self.runners.run(Ask("plain", pieces))["logits"]
        return logits

    def _prepared(
        self, items: Sequence[object], settings: Settings
    ) -> tuple[list[Job], dict[int, Prediction]]:
        """The items that can be classified, and the answers to those that can't, by index."""
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
        outputs = yield Ask("plain", pieces)
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

    def _answer(
        self, job: Job, probabilities: npt.NDArray[np.float64], settings: Settings
    ) -> Prediction:
        least = settings.abstain_below
        if least is None:
            least = self.bundle.manifest.abstain_below("plain")
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
    budget: int = BUDGET,
    synonyms: Mapping[str, str | Path] | None = None,
) -> Classifier:
    """A classifier from a shipped name, else a folder, never a download; no argument: the default.
    ``synonyms``: language → file of a table (``xlt_serve.synonyms``), before the bundle's own."""
    return Classifier(bundles.load(name_or_path), Options(threads, provider), budget, synonyms)


def largest(probabilities: dict[str, float], count: int | None) -> dict[str, float]:
    """All in the order of the labels, or only so many, the largest first."""
    if count is None:
        return probabilities
    return dict(sorted(probabilities.items(), key=lambda entry: -entry[1])[:count])
