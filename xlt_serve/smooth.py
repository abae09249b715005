"""Smoothed prediction: votes of the noisy classifier, drawn until the question is answered.

Two questions may be asked: which label, and is it certain within a radius. Each is put to an
anytime-valid test (``certify``), so that drawing stops as soon as the answer is known; if it is
still open at the limit, the answer is to abstain. The draws of all texts that are still open are
asked for together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xlt_serve import certify
from xlt_serve.errors import UsageError
from xlt_serve.noise import Noise
from xlt_serve.noisy import NoisyRow
from xlt_serve.steps import Ask, Steps
from xlt_serve.tokens import Piece

GRAPH = "perturbed"
MOST_SAMPLES = 100_000


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
    pieces: Sequence[Piece], keys: Sequence[int], classes: int, noise: Noise, options: Options
) -> Steps[list[Outcome]]:
    """The outcome of each text; ``keys`` are those of its noise."""
    polls = [Poll(classes, noise, options) for _ in pieces]
    while pending := [number for number, poll in enumerate(polls) if not poll.stopped]:
        draws = [
            (text, len(polls[text].votes) + further)
            for text in pending
            for further in range(polls[text].wanted())
        ]
        rows = [NoisyRow(pieces[text], keys[text], number, noise) for text, number in draws]
        outputs = yield Ask(GRAPH, rows)
        votes: dict[int, list[int]] = {text: [] for text in pending}
        for (text, _), vote in zip(draws, outputs["logits"].argmax(axis=1), strict=True):
            votes[text].append(int(vote))
        for text in pending:
            polls[text].add(votes[text])
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
