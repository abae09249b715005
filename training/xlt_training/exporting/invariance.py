"""Does a text get the same logits alone, among any neighbours, and with any padding?

Smoothed votes are only worth their certificate if they do. Per-tensor int8 scales, for one, do not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from xlt_serve.text.tokens import Piece

Run = Callable[[Sequence[Piece], int], np.ndarray]
"""(texts that go into one batch, columns of padding to add) → logits [texts, streams, labels]."""

TOLERANCE = {"fp32": 1e-5, "int8": 1e-3, "fp16": 1e-2}
BATCHES = 20


@dataclass(frozen=True)
class Invariance:
    """``labels_changed`` counts texts, ``largest_difference`` is of logits to those of the text alone."""

    largest_difference: float
    labels_changed: int
    texts: int
    tolerance: float
    holds: bool

    def to_dict(self) -> dict[str, float | int | bool]:
        return asdict(self)


def measure(
    run: Run, pieces: Sequence[Piece], precision: str, most: int, seed: int = 0
) -> Invariance:
    """Each text alone, in 20 random batches, and with extra padding (up to ``most`` tokens)."""
    generator = random.Random(seed)
    alone = np.concatenate([run([piece], 0) for piece in pieces])
    largest = 0.0
    changed: set[int] = set()

    def compare(chosen: list[int], columns: int) -> None:
        nonlocal largest
        given = run([pieces[i] for i in chosen], columns)
        # A NaN must count as a difference, not vanish in a maximum.
        difference = np.nan_to_num(np.abs(given - alone[chosen]), nan=np.inf)
        largest = max(largest, float(difference.max()))
        other = given.mean(axis=1).argmax(axis=-1) != alone[chosen].mean(axis=1).argmax(axis=-1)
        changed.update(np.array(chosen)[other].tolist())

    for _ in range(BATCHES):
        size = generator.randint(2, min(16, len(pieces))) if len(pieces) > 1 else 1
        compare(generator.sample(range(len(pieces)), size), 0)
    for index, piece in enumerate(pieces):
        room = most - len(piece.ids)
        if room > 0:
            compare([index], generator.randint(1, min(64, room)))
    tolerance = TOLERANCE[precision]
    holds = largest <= tolerance and not changed
    return Invariance(largest, len(changed), len(pieces), tolerance, holds)
