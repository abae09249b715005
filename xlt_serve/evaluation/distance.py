"""How far texts are from those that a classifier was trained on, by what its graph gives for them.

Export summarises the training's language: where the texts of each label lie, and how widely. Nothing of
the texts themselves is kept, and no language is too foreign to be measured, as it would be by its words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

ENTRY = "training_text"
"""Of a manifest's ``checks``."""
MOST = 10_000
"""Numbers that a summary may have: it stands in the manifest, which services send."""
FOLDS = 5
AT_ONCE = 256


@dataclass(frozen=True)
class TextSummary:
    """``output``: that of the plain graph which is looked at, ``vector`` where there is one, else
    ``logits``. ``centres`` [labels that were given, width], ``scale`` [width]: the spread around them.
    ``typical``: the median distance of held-out texts of the training's language."""

    output: str
    centres: Array
    scale: Array
    typical: float

    def distances(self, values: Array) -> Array:
        """Of rows of that output, to the nearest centre; 1 is that of a typical held-out text."""
        return raw_distances(centred(self.output, values), self.centres, self.scale) / self.typical

    def to_dict(self) -> dict[str, Any]:
        return {
            "output": self.output,
            "centres": [[_short(value) for value in row] for row in self.centres],
            "scale": [_short(value) for value in self.scale],
            "typical": _short(self.typical),
        }


def read(entry: Mapping[str, Any]) -> TextSummary:
    return TextSummary(
        output=entry["output"],
        centres=np.array(entry["centres"], dtype=np.float64),
        scale=np.array(entry["scale"], dtype=np.float64),
        typical=float(entry["typical"]),
    )


def summary(
    output: str, values: Array, labels: npt.NDArray[np.int64], held: int
) -> TextSummary | None:
    """Of texts of the training's language, each with the ``labels``' number that it was given. The first
    ``held`` were not trained on: what is typical is measured on them, with centres of all others. None
    where there are too few texts, or too many numbers."""
    values = centred(output, values)
    known = len(set(labels.tolist()))
    if held < 2 or len(values) < 2 * known + FOLDS or known * values.shape[1] > MOST:
        return None
    fold = np.full(len(values), -1)
    fold[:held] = np.random.default_rng(0).permutation(held) % min(FOLDS, held)
    found = np.zeros(held)
    for number in range(fold.max() + 1):
        there = fold == number
        found[there[:held]] = raw_distances(values[there], *_fitted(values[~there], labels[~there]))
    typical = float(np.median(found))  # a few strange texts lie very far
    return TextSummary(output, *_fitted(values, labels), typical) if typical > 0 else None


def centred(output: str, values: Array) -> Array:
    """Logits say the same where a constant is added to all of them."""
    values = np.asarray(values, dtype=np.float64)
    return values - values.mean(axis=1, keepdims=True) if output == "logits" else values


def raw_distances(values: Array, centres: Array, scale: Array) -> Array:
    """[rows]: root mean square over the width, in units of ``scale``, to the nearest centre."""
    out = np.zeros(len(values))
    for start in range(0, len(values), AT_ONCE):  # rows × centres × width may be much
        part = (values[start : start + AT_ONCE, None] - centres[None]) / scale
        out[start : start + AT_ONCE] = np.sqrt(np.square(part).mean(axis=2).min(axis=1))
    return out


def _fitted(values: Array, labels: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """Centres of the labels that occur, and the spread of all texts around that of their own."""
    there, own = np.unique(labels, return_inverse=True)
    centres = np.stack([values[labels == label].mean(axis=0) for label in there])
    free = max(1, len(values) - len(there))
    scale = np.sqrt(np.square(values - centres[own]).sum(axis=0) / free)
    return centres, np.maximum(scale, 1e-6)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
