"""The votes of a noisy classifier on one text, and the two questions that they answer.

Which label, and is it certain within a radius? Each is put to an anytime-valid test (``certify``),
so that drawing stops as soon as the answer is known; if it is still open at the limit, the answer is
to abstain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from xlt_serve.smoothing import certify
from xlt_serve.types import check_ranges, option

MOST_SAMPLES = 100_000
LEAST_ALPHA = 1e-38
"""About 2^-128: draws are addressed by a hash of 128 bits, and nothing said of them is surer."""
MOST_AT_ONCE = 128
"""Draws of a text that are made and run together: what they take does not grow with samples or alpha."""


@dataclass(frozen=True, slots=True)
class PollOptions:
    """``samples``: most draws of a text; ``alpha``: how often an answer may be wrong."""

    samples: int = option(100, "smoothed: most draws of a text", ge=1, le=MOST_SAMPLES)
    alpha: float = option(0.001, "smoothed: how often an answer may be wrong", ge=LEAST_ALPHA, lt=1)

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def fewest(self) -> int:
        """Draws that an answer takes at least: unanimous votes. Label and bound share alpha."""
        return min(self.samples, certify.fewest_votes(self.alpha / 2))


@dataclass(frozen=True, slots=True)
class PollOutcome:
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
    options: PollOptions
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
        """How many draws to take next: enough for unanimous votes, then half as many as there are,
        but not too many at once."""
        first = certify.fewest_votes(self.options.alpha / 2)
        more = max(4, len(self.votes) // 2) if self.votes else first
        return min(more, MOST_AT_ONCE, self.options.samples - len(self.votes))

    def outcome(self, reach: Callable[[float], float]) -> PollOutcome:
        proved = self._certificate
        label = self._label.label
        draws = self._label.draws
        if proved is not None:
            draws = proved.draws if proved.label is not None else max(draws, proved.draws)
            label = proved.label if proved.label is not None else label
        used = self.votes[:draws]
        given = Counter(used)
        counts = tuple(given[number] for number in range(self.classes))
        if proved is not None and proved.label is not None:
            bound = proved.lower_bound
        elif label is not None:
            bound = certify.bound_of(used, label, self.options.alpha / 2)
        else:
            bound = 0.0
        certified = proved is not None and proved.certified
        return PollOutcome(label, counts, draws, bound, reach(bound), certified)
