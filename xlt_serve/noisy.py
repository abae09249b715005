"""Draws on the perturbed graph: a text and its noise, many draws of many texts in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xlt_serve import certify
from xlt_serve.feeds import feeds
from xlt_serve.noise import Noise, Source
from xlt_serve.session import Session
from xlt_serve.shapes import split
from xlt_serve.steps import Outputs
from xlt_serve.tokens import Piece


@dataclass(frozen=True, slots=True)
class NoisyRow:
    """Draw ``number`` of the text whose stream of noise is ``key``."""

    piece: Piece
    key: int
    number: int
    noise: Noise

    @property
    def length(self) -> int:
        return self.piece.length


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

    def rows(self, numbers: Sequence[int]) -> list[NoisyRow]:
        return [NoisyRow(self.piece, self.key, number, self.noise) for number in numbers]

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


class NoisyRunner:
    """Rows are ``NoisyRow``s; the output is ``logits``. Noise is drawn here, where its batch is made:
    what travels is its address."""

    def __init__(self, session: Session, pad_id: int) -> None:
        self.session, self.pad_id = session, pad_id
        _, *dims = (split(dim) for dim in session.dims["noise"])
        self.width = dims[-1][1]
        # Positions of soft prompts; None: the noise has no positions at all.
        self.extra = dims[0][1] if len(dims) == 2 else None

    def run(self, rows: Sequence[NoisyRow]) -> Outputs:
        texts: dict[int, int] = {}  # a text is embedded once, however many draws it has here
        for row in rows:
            texts.setdefault(id(row.piece), len(texts))
        pieces = list({id(row.piece): row.piece for row in rows}.values())
        given = feeds(pieces, self.session, self.pad_id)
        given["row"] = np.array([texts[id(row.piece)] for row in rows], dtype=np.int64)
        given["noise"] = self.noise(rows, given["input_ids"].shape[1])
        return self.session.run(given)

    def noise(self, rows: Sequence[NoisyRow], longest: int) -> npt.NDArray[np.float32]:
        """[rows, longest + prompts, width], 0 at padding; [rows, width] at the encoder's output."""
        source = Source()
        if self.extra is None:
            out = np.empty((len(rows), self.width), dtype=np.float32)
            for place, row in zip(out, rows, strict=True):
                source.fill(row.key, row.number, row.noise, place)
            return out
        out = np.zeros((len(rows), longest + self.extra, self.width), dtype=np.float32)
        for place, row in zip(out, rows, strict=True):
            source.fill(row.key, row.number, row.noise, place[: row.length + self.extra])
        return out
