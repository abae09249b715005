"""How a text and its translation vote: the translation's share goes by how far the two agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xlt_serve.types import Untranslated

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Vote:
    """The translation's weight is σ(offset + slope · agreement); with both 0 it is the paper's half.
    Where they agree less than ``least``, the text is predicted alone."""

    offset: float = 0.0
    slope: float = 0.0
    least: float | None = None

    @classmethod
    def fitted(cls, calibration: Mapping[str, float]) -> Vote:
        """What an export has fitted, as the manifest keeps it."""
        return cls(
            calibration.get("agreement_offset", 0.0),
            calibration.get("agreement_slope", 0.0),
            calibration.get("agreement_least"),
        )

    @property
    def listens(self) -> bool:
        return self != Vote()

    def weight(self, agreement: float) -> float:
        return float(1 / (1 + np.exp(-(self.offset + self.slope * agreement))))

    def turned_down(self, agreement: float) -> Untranslated | None:
        """Why a translation does not count; None: it does."""
        if self.least is None or agreement >= self.least:
            return None
        return Untranslated(
            "disagrees",
            f"text and translation agree to {agreement:.3f}, less than the {self.least:.3f}"
            " of nearly all good translations",
        )


def mean(weight: float, text: Array, translation: Array) -> Array:
    """Of two distributions, the translation's with ``weight``."""
    return (1 - weight) * text + weight * translation
