"""What goes in and what comes out: plain values, the same in Python, on the wire and in files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from xlt_serve.errors import UsageError

Item: TypeAlias = "str | tuple[str, str]"
Long: TypeAlias = Literal["truncate", "windows", "error"]
LONG_CHOICES: tuple[Long, ...] = ("truncate", "windows", "error")


Mode: TypeAlias = Literal["plain", "translate", "paired", "smoothed"]
MODES: tuple[Mode, ...] = ("plain", "translate", "paired", "smoothed")


@dataclass(frozen=True, slots=True)
class Smoothing:
    """What a smoothed prediction may be asked for; ``noise`` and ``scale`` default to those that the
    bundle was trained with, ``seed`` to a new one. To be certified: a ``radius``, or with synonyms a
    number of ``words``; ``synonyms`` says whether these are drawn in groups or from raw lists."""

    samples: int = 100
    alpha: float = 0.001
    radius: float | None = None
    noise: str | None = None
    scale: float | None = None
    seed: int | None = None
    words: int | None = None
    synonyms: str | None = None

    def __post_init__(self) -> None:
        if self.radius is not None and not 0 < self.radius < float("inf"):
            raise UsageError(f"radius={self.radius}", "must be positive")
        if self.words is not None and self.words < 1:
            raise UsageError(f"words={self.words}", "must be at least 1")


@dataclass(frozen=True, slots=True)
class Rendering:
    """An item in the source language; ``translator`` is an engine's name, ``client``, or ``same`` for
    an item that is in that language already. ``quality`` is the engine's own hint, if it gives one."""

    item: Item
    translator: str
    quality: float | None = None


@dataclass(frozen=True, slots=True)
class Unrendered:
    """Why an item has no translation."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Settings:
    """How items are to be predicted; the same for all items of a request.

    ``long`` says what happens to texts over the model's length (or ``max_length``, if less). With
    ``abstain_below``, by default the bundle's own if it has one, a prediction less sure than that
    has no label; 0 answers always. ``top_k`` keeps that many probabilities, the largest.

    For the modes paired and translate, ``translations`` has for each item its translation into the
    source language (a text, or two for a pair), or None to have it translated; where that fails the
    item is predicted as it is, or, with ``require_translation``, has an error.
    """

    mode: str = "plain"
    long: str = "truncate"
    language: str | None = None
    max_length: int | None = None
    abstain_below: float | None = None
    top_k: int | None = None
    smoothing: Smoothing = Smoothing()
    translations: Sequence[object] | None = None
    require_translation: bool = False

    def __post_init__(self) -> None:
        """Refuse the first option that is out of its range."""
        if self.mode not in MODES:
            raise UsageError(f"mode={self.mode!r}", f"must be one of {', '.join(MODES)}")
        if self.long not in LONG_CHOICES:
            raise UsageError(f"long={self.long!r}", f"must be one of {', '.join(LONG_CHOICES)}")
        if self.mode != "plain" and self.long == "windows":
            raise UsageError("long=windows", f"has no {self.mode} form", "use truncate or error")
        if self.mode not in ("paired", "translate"):
            for name in ("translations", "require_translation"):
                if getattr(self, name):
                    raise UsageError(name, f"mode={self.mode} uses no translations", "leave it out")
        if isinstance(self.translations, str):
            raise UsageError("translations", "must be a list, one for each item")
        if self.max_length is not None and self.max_length < 8:
            raise UsageError(f"max_length={self.max_length}", "must be at least 8 tokens")
        if self.abstain_below is not None and not 0 <= self.abstain_below <= 1:
            raise UsageError(
                f"abstain_below={self.abstain_below}", "must be between 0 and 1 (inclusive)"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k={self.top_k}", "must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The label holds for every change of less than ``radius`` in ``norm`` at the place ``at``, or if
    synonyms replace any ``words`` of the ``of`` words that have some; but for one answer in
    1/``alpha``. What does not apply is None, and left out on the wire."""

    norm: str
    radius: float | None = None
    words: int | None = None
    of: int | None = None
    at: str
    noise: str
    scale: float | None = None
    synonyms: str | None = None
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
class Pairing:
    """What a prediction with a translation rests on. ``ratio`` is λ, how much of the translation was
    mixed into the text; ``reason`` says why there was no translation to predict with."""

    mixed: bool | None
    ratio: float | None = None
    translation: Item | None = None
    translator: str | None = None
    quality: float | None = None
    reason: Unrendered | None = None

    def to_dict(self) -> dict[str, Any]:
        out = asdict(self)
        if self.mixed is None:  # translate-test mixes nothing
            del out["mixed"], out["ratio"]
        for name in ("ratio", "quality"):
            if out.get(name) is not None:
                out[name] = round(out[name], 6)
        return out


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
    pairing: Pairing | None = None
    bundle: str = ""
    version: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of this prediction; bundle and version stand once per answer, not here."""
        smoothed = {} if self.smoothed is None else asdict(self.smoothed)
        pairing = {} if self.pairing is None else self.pairing.to_dict()
        if certificate := smoothed.get("certificate"):
            smoothed["certificate"] = {k: v for k, v in certificate.items() if v is not None}
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
            **pairing,
        }
