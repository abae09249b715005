"""Draws of noisy texts, asked for together until each text has its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xlt_serve.errors import ItemError
from xlt_serve.runtime.graph_io import PerturbedIO, PerturbedRow
from xlt_serve.runtime.steps import Row, RowOutputs, RunRequest, Steps
from xlt_serve.smoothing.noise import Noise
from xlt_serve.smoothing.votes import Poll, PollOptions, PollOutcome
from xlt_serve.text.tokens import Piece

TEXT_AT_ONCE = 50_000
"""Characters of draws that are tokenised in one step, or one draw of each text: so long others wait."""


class Voter(Protocol):
    """A text that is drawn from: ``NoisyText``, ``RewrittenText``."""

    @property
    def graph(self) -> str:
        """The graph that its draws run on."""

    @property
    def size(self) -> int:
        """Characters that have to be tokenised for a draw."""

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


class NoisyText:
    """The draws of a text, on the perturbed graph; ``radius``: to certify, none: the label alone."""

    graph = PerturbedIO.name
    size = 0  # it is tokenised already

    def __init__(self, piece: Piece, key: int, noise: Noise, radius: float | None = None) -> None:
        tokens = piece.length if noise.at == "embeddings" else 1
        self.noise = replace(noise, tokens=tokens)
        self.piece, self.key, self.radius = piece, key, radius

    @property
    def threshold(self) -> float | None:
        return None if self.radius is None else self.noise.threshold(self.radius)

    def reach(self, bound: float) -> float:
        """The radius that a bound proves, at least the one asked for if it proves that."""
        radius = self.noise.radius(bound)
        if self.threshold is not None and bound > self.threshold:
            radius = max(radius, self.radius or 0.0)
        return radius

    def rows(self, numbers: Sequence[int]) -> list[PerturbedRow]:
        return [PerturbedRow(self.piece, self.key, number, self.noise) for number in numbers]

    def votes(self, logits: npt.NDArray[Any]) -> list[int]:
        return [int(vote) for vote in logits.argmax(axis=1)]


def polled(
    voters: Sequence[Voter], classes: int, options: PollOptions
) -> Steps[list[PollOutcome | ItemError]]:
    """The outcome of each text; an error where one of its draws has no answer, whatever the others
    say: a vote that leaves some draws out is not the vote that is certified."""
    polls = [Poll(classes, voter.threshold, options) for voter in voters]
    failed: dict[int, ItemError] = {}
    while pending := [n for n, poll in enumerate(polls) if n not in failed and not poll.stopped]:
        most = max(1, TEXT_AT_ONCE // max(1, sum(voters[text].size for text in pending)))
        asked: dict[str, list[tuple[int, Sequence[Row]]]] = {}
        for text in pending:
            taken = len(polls[text].votes)
            numbers = range(taken, taken + min(polls[text].wanted(), most))
            try:
                asked.setdefault(voters[text].graph, []).append((text, voters[text].rows(numbers)))
            except ItemError as error:
                failed[text] = error
        for graph, parts in asked.items():
            rows = [row for _, part in parts for row in part]
            none = RowOutputs({"logits": np.zeros((0, classes))})
            outputs = (yield RunRequest(graph, rows)) if rows else none
            start = 0
            for text, part in parts:
                end = start + len(part)
                try:
                    polls[text].add(voters[text].votes(outputs.rows(start, end)["logits"]))
                except ItemError as error:
                    failed[text] = error
                start = end
    return [
        failed[number] if number in failed else polls[number].outcome(voter.reach)
        for number, voter in enumerate(voters)
    ]
