"""Smoothed prediction: votes of the noisy classifier, drawn until the question is answered.

Two questions may be asked: which label, and is it certain within a radius. Each is put to an
anytime-valid test (``certify``), so that drawing stops as soon as the answer is known; if it is
still open at the limit, the answer is to abstain. Draws of several texts share runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from xlt_serve import certify
from xlt_serve.batching import plan
from xlt_serve.errors import UsageError
from xlt_serve.noise import Noise, draw
from xlt_serve.tokens import Piece

MOST_SAMPLES = 100_000

Run = Callable[[list[Piece], list[int], list[npt.NDArray[np.float32]]], npt.NDArray[np.float32]]
"""(texts, for each draw the number of its text, for each draw its noise) → logits [draws, labels]."""


@dataclass(frozen=True, slots=True)
class Options:
    """``samples``: most draws of a text; ``alpha``: how often an answer may be wrong; ``radius``: to
    certify, in the noise's norm; none: the label alone is asked for."""

    samples: int = 100
    alpha: float = 0.001
    radius: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.samples <= MOST_SAMPLES:
            raise UsageError(f"samples={self.samples}", f"must be from 1 to {MOST_SAMPLES}")
        if not 0 < self.alpha < 1:
            raise UsageError(f"alpha={self.alpha}", "must be between 0 and 1 (exclusive)")
        if self.radius is not None and not 0 < self.radius < float("inf"):
            raise UsageError(f"radius={self.radius}", "must be positive")


@dataclass(frozen=True, slots=True)
class Outcome:
    """``votes`` of each label among the ``draws`` that the answer rests on; ``radius`` is what
    ``lower_bound`` proves, at least the one asked for if ``certified``."""

    label: int | None
    votes: tuple[int, ...]
    draws: int
    lower_bound: float
    radius: float
    certified: bool


@dataclass
class Poll:
    """The votes of one text, and the questions put to them."""

    classes: int
    noise: Noise
    options: Options
    votes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Label and bound are two claims: half of alpha for each, so that both hold at once.
        half, limit = self.options.alpha / 2, self.options.samples
        self._race = certify.LabelRace(self.classes, half, limit)
        self._label = self._race.add([])
        self._test: certify.ThresholdTest | None = None
        self._certificate: certify.Decision | None = None
        if self.options.radius is not None:
            threshold = threshold_for(self.noise, self.options.radius)
            self._test = certify.ThresholdTest(self.classes, threshold, half, limit)
            self._certificate = self._test.add([])

    @property
    def stopped(self) -> bool:
        if self._certificate is not None:
            if not self._certificate.stopped:
                return False
            if self._certificate.label is not None:  # the bound proves the label too
                return True
        return self._label.stopped

    def add(self, votes: Sequence[int]) -> None:
        """Votes in the order of their draws."""
        self.votes += votes
        self._label = self._race.add(votes)
        if self._test is not None:
            self._certificate = self._test.add(votes)

    def wanted(self) -> int:
        """How many draws to take next: enough for unanimous votes, then half as many as there are."""
        first = certify.fewest_votes(self.options.alpha / 2)
        more = max(4, len(self.votes) // 2) if self.votes else first
        return min(more, self.options.samples - len(self.votes))

    def outcome(self) -> Outcome:
        proved = self._certificate
        label = self._label.label
        draws = self._label.draws
        if proved is not None:
            draws = proved.draws if proved.label is not None else max(draws, proved.draws)
            label = proved.label if proved.label is not None else label
        used = self.votes[:draws]
        counts = tuple(used.count(number) for number in range(self.classes))
        if proved is not None and proved.label is not None:
            bound = proved.lower_bound
        elif label is not None:
            bound = certify.bound_of(used, label, self.options.alpha / 2)
        else:
            bound = 0.0
        radius = radius_of(self.noise, bound)
        certified = proved is not None and proved.certified
        if certified and self.options.radius is not None:
            radius = max(radius, self.options.radius)
        return Outcome(label, counts, draws, bound, radius, certified)


def smooth(
    pieces: Sequence[Piece],
    keys: Sequence[int],
    classes: int,
    noise: Noise,
    options: Options,
    run: Run,
    shape: Callable[[Piece], tuple[int, ...]],
    budget: int,
) -> list[Outcome]:
    """The outcome of each text. ``keys`` are those of its noise; ``shape`` that of its draws."""
    polls = [Poll(classes, noise, options) for _ in pieces]
    while pending := [i for i, poll in enumerate(polls) if not poll.stopped]:
        draws = [
            (text, len(polls[text].votes) + number)
            for text in pending
            for number in range(polls[text].wanted())
        ]
        votes = np.zeros(len(draws), dtype=np.int64)
        for batch in plan([len(pieces[text].ids) for text, _ in draws], budget):
            texts = sorted({draws[i][0] for i in batch})
            rows = [texts.index(draws[i][0]) for i in batch]
            noises = [
                draw(keys[draws[i][0]], draws[i][1], shape(pieces[draws[i][0]]), noise)
                for i in batch
            ]
            logits = run([pieces[text] for text in texts], rows, noises)
            votes[batch] = logits.argmax(axis=1)
        for text in pending:
            polls[text].add([int(v) for v, d in zip(votes, draws, strict=True) if d[0] == text])
    return [poll.outcome() for poll in polls]


def threshold_for(noise: Noise, radius: float) -> float:
    if noise.kind == "gaussian":
        return certify.gaussian_threshold(noise.scale, radius)
    return certify.uniform_threshold(noise.scale, radius)


def radius_of(noise: Noise, bound: float) -> float:
    if bound <= 0.5:
        return 0.0
    if noise.kind == "gaussian":
        return certify.gaussian_radius(noise.scale, bound)
    return certify.uniform_radius(noise.scale, bound)
