"""Items in, predictions out: the one road that the CLI, the service and the scorer take."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlt_serve import bundle as bundles
from xlt_serve.batching import plan
from xlt_serve.bundle import Bundle
from xlt_serve.calibrate import softmax
from xlt_serve.errors import BundleError, ItemError, UsageError
from xlt_serve.graphs import open_graph
from xlt_serve.language import detect
from xlt_serve.schema import (
    LONG_CHOICES,
    MODES,
    Failure,
    Item,
    Long,
    Prediction,
    Smoothing,
    Votes,
)
from xlt_serve.session import Options, pad
from xlt_serve.smoother import Smoother
from xlt_serve.tokens import Encoder, Piece, Tokens, check

BUDGET = 4096
"""Padded tokens in one run: enough to keep the cores busy, small enough for the caches."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A valid item on its way: where it stands in the request, its tokens, its language."""

    index: int
    item: Item
    tokens: Tokens
    language: str | None


class Classifier:
    """A loaded bundle. ``predict`` may be called from several threads."""

    def __init__(
        self, bundle: Bundle, options: Options | None = None, budget: int = BUDGET
    ) -> None:
        self.bundle = bundle
        self.options = options
        self.budget = budget
        manifest = bundle.manifest
        if "plain" not in manifest.graphs:
            raise BundleError(bundle.path, "has no plain graph", "export it again")
        if budget < 1:
            raise UsageError(f"budget={budget}", "must be at least 1 token")
        self.labels = manifest.labels
        self.encoder = Encoder(bundle.file(manifest.tokenizer), manifest.max_length)
        self.session = open_graph(bundle, "plain", options, budget)
        self._opening = threading.Lock()
        self._smoothed: Smoother | None = None
        width = self.session.widths["logits"]
        if isinstance(width, int) and width != len(self.labels):
            raise BundleError(
                bundle.path,
                f"has {len(self.labels)} labels, its graph gives {width}",
                "export it again",
            )

    def predict(
        self,
        items: Iterable[object],
        *,
        mode: str = "plain",
        long: Long = "truncate",
        language: str | None = None,
        max_length: int | None = None,
        abstain_below: float | None = None,
        smoothing: Smoothing | None = None,
    ) -> list[Prediction]:
        """One prediction for each item, in order; an item's own error is a value in its place.

        ``items`` are texts, or tuples of two where the bundle classifies pairs. ``long`` says what
        happens to texts over the model's length (or ``max_length``, if less). With
        ``abstain_below``, by default the bundle's own if it has one, a prediction less sure than
        that has no label; 0 answers always. With ``mode="smoothed"`` the label is the winner of a
        vote under noise (see ``Smoothing``), and has no label if the vote is too close.
        """
        if isinstance(items, str):
            raise UsageError("a single text", "predict takes a list", "write predict([text])")
        check_options(mode=mode, long=long, max_length=max_length, abstain_below=abstain_below)
        smoother = self._smoother() if mode == "smoothed" else None
        if abstain_below is None:
            abstain_below = self.bundle.manifest.abstain_below("plain")
        items = list(items)
        out: list[Prediction | None] = [None] * len(items)
        valid: list[tuple[int, Item]] = []
        for index, item in enumerate(items):
            try:
                valid.append((index, check(item, self.bundle.manifest.pair)))
            except ItemError as error:
                out[index] = self._failed(error, mode)
        encoded = self.encoder.encode([item for _, item in valid], long, max_length)
        jobs: list[_Job] = []
        for (index, item), tokens in zip(valid, encoded, strict=True):
            if isinstance(tokens, ItemError):
                out[index] = self._failed(tokens, mode)
            else:
                spoken = (
                    language or detect(item if isinstance(item, str) else " ".join(item)).language
                )
                jobs.append(_Job(index, item, tokens, spoken))
        if smoother is not None:
            answers = smoother.answers(
                [job.item for job in jobs],
                [job.tokens.pieces[0] for job in jobs],
                smoothing or Smoothing(),
            )
            for job, (best, votes) in zip(jobs, answers, strict=True):
                out[job.index] = self._voted(job, best, votes)
            return [prediction for prediction in out if prediction is not None]
        for job, probabilities in zip(jobs, self._probabilities(jobs), strict=True):
            out[job.index] = self._answer(job, probabilities, abstain_below)
        return [prediction for prediction in out if prediction is not None]

    def logits(self, pieces: Sequence[Piece]) -> npt.NDArray[np.float32]:
        """[pieces, labels], in order, whatever the batches were."""
        out = np.zeros((len(pieces), len(self.labels)), dtype=np.float32)
        for batch in plan([len(piece.ids) for piece in pieces], self.budget):
            out[batch] = self.session.run(self._feeds([pieces[i] for i in batch]))["logits"]
        return out

    def _feeds(self, pieces: list[Piece]) -> dict[str, npt.NDArray[Any]]:
        ids, mask = pad([piece.ids for piece in pieces], self.bundle.manifest.pad_id)
        feeds = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self.session.inputs:
            feeds["token_type_ids"] = pad([piece.type_ids for piece in pieces], 0)[0]
        return feeds

    def _probabilities(self, jobs: list[_Job]) -> list[npt.NDArray[np.float64]]:
        """Calibrated probabilities of each job: the token-weighted mean over its windows."""
        pieces = [piece for job in jobs for piece in job.tokens.pieces]
        if not pieces:
            return []
        rows = softmax(self.logits(pieces), self.bundle.manifest.temperature("plain"))
        out, start = [], 0
        for job in jobs:
            end = start + len(job.tokens.pieces)
            weights = np.array([len(piece.ids) for piece in job.tokens.pieces], dtype=np.float64)
            out.append(weights @ rows[start:end] / weights.sum())
            start = end
        return out

    def _answer(
        self, job: _Job, probabilities: npt.NDArray[np.float64], abstain_below: float | None
    ) -> Prediction:
        best = int(probabilities.argmax())
        unsure = abstain_below is not None and probabilities[best] < abstain_below
        return Prediction(
            label=None if unsure else self.labels[best],
            probabilities={
                name: float(p) for name, p in zip(self.labels, probabilities, strict=True)
            },
            language=job.language,
            tokens=job.tokens.count,
            truncated=job.tokens.truncated,
            windows=len(job.tokens.pieces),
            abstained="confidence" if unsure else None,
            bundle=self.bundle.manifest.name,
            version=self.bundle.manifest.version,
        )

    def _voted(self, job: _Job, best: int | None, votes: Votes) -> Prediction:
        shares = {name: count / max(1, votes.draws) for name, count in votes.votes.items()}
        return Prediction(
            label=None if best is None else self.labels[best],
            probabilities=shares,
            language=job.language,
            tokens=job.tokens.count,
            truncated=job.tokens.truncated,
            mode="smoothed",
            abstained="votes" if best is None else None,
            smoothed=votes,
            bundle=self.bundle.manifest.name,
            version=self.bundle.manifest.version,
        )

    def _smoother(self) -> Smoother:
        """Opened when it is first asked for: most requests are plain, and a graph takes memory."""
        with self._opening:
            if self._smoothed is None:
                self._smoothed = Smoother(self.bundle, self.options, self.budget)
            return self._smoothed

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
) -> Classifier:
    """A classifier from a shipped name, else a folder, never a download; no argument: the default."""
    return Classifier(bundles.load(name_or_path), Options(threads, provider), budget)


def check_options(
    *, mode: str, long: str, max_length: int | None, abstain_below: float | None
) -> None:
    """Raise a UsageError for the first option that is out of its range."""
    if mode not in MODES:
        raise UsageError(f"mode={mode!r}", f"must be one of {', '.join(MODES)}")
    if long not in LONG_CHOICES:
        raise UsageError(f"long={long!r}", f"must be one of {', '.join(LONG_CHOICES)}")
    if mode == "smoothed" and long == "windows":
        raise UsageError("long=windows", "has no smoothed form", "use truncate or error")
    if max_length is not None and max_length < 8:
        raise UsageError(f"max_length={max_length}", "must be at least 8 tokens")
    if abstain_below is not None and not 0 <= abstain_below <= 1:
        raise UsageError(f"abstain_below={abstain_below}", "must be between 0 and 1 (inclusive)")
