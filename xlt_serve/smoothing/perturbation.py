"""Draws on the perturbed graph: a text and its noise, many draws of many texts in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from xlt_serve.runtime.graph_io import PerturbedRow
from xlt_serve.smoothing import certify
from xlt_serve.smoothing.noise import Noise
from xlt_serve.text.tokens import Piece


class NoisyText:
    """The draws of a text, on the perturbed graph; ``radius``: to certify, none: the label alone."""

    graph = "perturbed"

    def __init__(self, piece: Piece, key: int, noise: Noise, radius: float | None = None) -> None:
        self.piece, self.key, self.noise, self.radius = piece, key, noise, radius

    @property
    def threshold(self) -> float | None:
        return None if self.radius is None else threshold_for(self.noise, self.radius)

    def reach(self, bound: float) -> float:
        """The radius that a bound proves, at least the one asked for if it proves that."""
        radius = radius_of(self.noise, bound)
        if self.threshold is not None and bound > self.threshold:
            radius = max(radius, self.radius or 0.0)
        return radius

    def rows(self, numbers: Sequence[int]) -> list[PerturbedRow]:
        return [PerturbedRow(self.piece, self.key, number, self.noise) for number in numbers]

    def votes(self, logits: npt.NDArray[Any]) -> list[int]:
        return [int(vote) for vote in logits.argmax(axis=1)]


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
