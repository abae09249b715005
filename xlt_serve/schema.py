"""What goes in and what comes out: plain values, the same in Python, on the wire and in files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

Item: TypeAlias = "str | tuple[str, str]"
Long: TypeAlias = Literal["truncate", "windows", "error"]
LONG_CHOICES: tuple[Long, ...] = ("truncate", "windows", "error")


Mode: TypeAlias = Literal["plain", "smoothed"]
MODES: tuple[Mode, ...] = ("plain", "smoothed")


@dataclass(frozen=True, slots=True)
class Smoothing:
    """What a smoothed prediction may be asked for; ``noise`` and ``scale`` default to those that the
    bundle was trained with, ``seed`` to a new one."""

    samples: int = 100
    alpha: float = 0.001
    radius: float | None = None
    noise: str | None = None
    scale: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Certificate:
    """The label holds for every change of less than ``radius`` in ``norm`` at the place ``at``, but
    for one answer in 1/``alpha``."""

    norm: str
    radius: float
    at: str
    noise: str
    scale: float
    alpha: float


@dataclass(frozen=True, slots=True)
class Votes:
    """What a smoothed prediction rests on."""

    votes: dict[str, int]
    draws: int
    seed: int
    lower_bound: float
    certificate: Certificate | None
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one item has no answer."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer to one item.

    ``label`` is None where the item failed (``error`` says why) or the model abstained
    (``abstained`` says on what ground). ``tokens`` counts the whole text, also the part that was
    cut off (``truncated``). ``windows`` is the number of pieces that a long text was read in.
    """

    label: str | None
    probabilities: dict[str, float] = field(default_factory=dict)
    language: str | None = None
    tokens: int = 0
    truncated: bool = False
    windows: int = 1
    mode: str = "plain"
    abstained: Literal["votes", "confidence"] | None = None
    error: Failure | None = None
    smoothed: Votes | None = None
    bundle: str = ""
    version: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of this prediction; bundle and version stand once per answer, not here."""
        smoothed = {} if self.smoothed is None else asdict(self.smoothed)
        return {
            "label": self.label,
            "probabilities": {name: round(p, 6) for name, p in self.probabilities.items()},
            "language": self.language,
            "tokens": self.tokens,
            "truncated": self.truncated,
            "windows": self.windows,
            "mode": self.mode,
            "abstained": self.abstained,
            "error": None
            if self.error is None
            else {"code": self.error.code, "message": self.error.message},
            **smoothed,
        }
