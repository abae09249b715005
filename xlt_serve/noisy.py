"""Draws on the perturbed graph: a text and its noise, many draws of many texts in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xlt_serve.feeds import feeds
from xlt_serve.noise import Noise, draw
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
        if self.extra is None:
            return np.stack([draw(r.key, r.number, (self.width,), r.noise) for r in rows])
        out = np.zeros((len(rows), longest + self.extra, self.width), dtype=np.float32)
        for number, row in enumerate(rows):
            shape = (row.length + self.extra, self.width)
            out[number, : shape[0]] = draw(row.key, row.number, shape, row.noise)
        return out
