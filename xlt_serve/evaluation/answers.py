"""What a classifier said of labelled rows of one language, beside what is true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xlt_serve.files.labelled import Labelled
from xlt_serve.types import Prediction


@dataclass(frozen=True)
class Answers:
    """One entry for each row. ``best``: the label that it would have to give, if it had to give one; None
    where the row failed. ``given``: whether it gave it, or abstained. ``shares`` [rows, labels]: its
    probabilities, or shares of votes; zeros where the row failed."""

    labels: tuple[str, ...]
    ids: tuple[str, ...]
    truth: tuple[str, ...]
    best: tuple[str | None, ...]
    given: npt.NDArray[np.bool_]
    shares: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """Of the best labels, abstained or not; a row that failed is wrong."""
        return np.array([b == t for b, t in zip(self.best, self.truth, strict=True)], dtype=bool)

    @property
    def failed(self) -> int:
        return sum(label is None for label in self.best)


def answers(
    labels: Sequence[str], rows: Sequence[Labelled], predictions: Sequence[Prediction]
) -> Answers:
    shares = np.array([_shares(labels, found) for found in predictions]).reshape(-1, len(labels))
    best = [
        None if found.error is not None else labels[int(row.argmax())]
        for found, row in zip(predictions, shares, strict=True)
    ]
    return Answers(
        labels=tuple(labels),
        ids=tuple(row.id for row in rows),
        truth=tuple(row.label for row in rows),
        best=tuple(best),
        given=np.array([found.label is not None for found in predictions], dtype=bool),
        shares=shares,
    )


def joined(parts: Sequence[Answers]) -> Answers:
    """Those of one language, part after part."""
    return Answers(
        labels=parts[0].labels,
        ids=tuple(id for part in parts for id in part.ids),
        truth=tuple(label for part in parts for label in part.truth),
        best=tuple(label for part in parts for label in part.best),
        given=np.concatenate([part.given for part in parts]),
        shares=np.concatenate([part.shares for part in parts]),
    )


def _shares(labels: Sequence[str], found: Prediction) -> list[float]:
    if found.error is not None:
        return [0.0] * len(labels)
    if found.smoothed is not None:
        votes = [found.smoothed.votes.get(label, 0) for label in labels]
        return [count / max(1, sum(votes)) for count in votes]
    return [found.probabilities.get(label, 0.0) for label in labels]
