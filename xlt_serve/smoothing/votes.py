"""Smoothed prediction: votes of the noisy classifier, drawn until the question is answered.

Two questions may be asked: which label, and is it certain within a radius. Each is put to an
anytime-valid test (``certify``), so that drawing stops as soon as the answer is known; if it is
still open at the limit, the answer is to abstain. The draws of all texts that are still open are
asked for together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xlt_serve.errors import UsageError
from xlt_serve.runtime.steps import Row, RunRequest, Steps
from xlt_serve.smoothing import certify

MOST_SAMPLES = 100_000


class Voter(Protocol):
    """A text that is drawn from: ``NoisyText``, ``RewrittenText``."""

    @property
    def graph(self) -> str:
        """The graph that its draws run on."""

    @property
    def threshold(self) -> float | None:
        """The bound to exceed for what is to be certified; None: the label alone is asked for."""

    def reach(self, bound: float) -> float:
        """How far the label holds if its probability is at least this: a radius, or a number of
        words; 0: nothing is proved."""

    def rows(self, numbers: Sequence[int]) -> Sequence[Row]:
        """What to run for the draws of these numbers."""

    def votes(self, logits: npt.NDArray[Any]) -> list[int]:
        """The vote of each draw asked for last, from the logits of its rows."""


@dataclass(frozen=True, slots=True)
class Options:
    """``samples``: most draws of a text; ``alpha``: how often an answer may be wrong."""

    samples: int = 100
    alpha: float = 0.001

    def __post_init__(self) -> None:
        if not 1 <= self.samples <= MOST_SAMPLES:
            raise UsageError(f"samples={self.samples}", f"must be from 1 to {MOST_SAMPLES}")
        if not 0 < self.alpha < 1:
            raise UsageError(f"alpha={self.alpha}", "must be between 0 and 1 (exclusive)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """``votes`` of each label among the ``draws`` that the answer rests on; ``reach`` is what
    ``lower_bound`` proves, as a radius or a number of words; ``certified``: what was asked for is."""

    label: int | None
    votes: tuple[int, ...]
    draws: int
    lower_bound: float
    reach: float
    certified: bool


@dataclass
class Poll:
    """The votes of one text, and the questions put to them."""

    classes: int
    threshold: float | None
    options: Options
    votes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Label and bound are two claims: half of alpha for each, so that both hold at once.
        half, limit = self.options.alpha / 2, self.options.samples
        self._race = certify.LabelRace(self.classes, half, limit)
        self._label = self._race.add([])
        self._test: certify.ThresholdTest | None = None
        self._certificate: certify.Decision | None = None
        if self.threshold is not None:
            self._test = certify.ThresholdTest(self.classes, self.threshold, half, limit)
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

    def outcome(self, reach: Callable[[float], float]) -> Outcome:
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
        certified = proved is not None and proved.certified
        return Outcome(label, counts, draws, bound, reach(bound), certified)


def smooth(voters: Sequence[Voter], classes: int, options: Options) -> Steps[list[Outcome]]:
    """The outcome of each text."""
    polls = [Poll(classes, voter.threshold, options) for voter in voters]
    while pending := [number for number, poll in enumerate(polls) if not poll.stopped]:
        asked: dict[str, list[tuple[int, Sequence[Row]]]] = {}
        for text in pending:
            taken = len(polls[text].votes)
            numbers = range(taken, taken + polls[text].wanted())
            asked.setdefault(voters[text].graph, []).append((text, voters[text].rows(numbers)))
        for graph, parts in asked.items():
            rows = [row for _, part in parts for row in part]
            logits = (yield RunRequest(graph, rows))["logits"] if rows else np.zeros((0, classes))
            start = 0
            for text, part in parts:
                end = start + len(part)
                polls[text].add(voters[text].votes(logits[start:end]))
                start = end
    return [poll.outcome(voter.reach) for poll, voter in zip(polls, voters, strict=True)]
