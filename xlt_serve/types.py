"""What goes in and what comes out: plain values, the same in Python, on the wire and in files.

An option's range and meaning stand in its field (``option``). The dataclass checks the range, the
wire publishes it, and the command line shows the meaning.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from functools import cache
from html import escape
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from xlt_serve.errors import UsageError

Item: TypeAlias = str | tuple[str, str]
Long: TypeAlias = Literal["truncate", "windows", "error"]
LONG_CHOICES: tuple[Long, ...] = get_args(Long)
Mode: TypeAlias = Literal["plain", "translate", "paired", "smoothed"]
"""For type checkers. The modes that there are stand in ``modes.MODES``; a test compares the two."""

O = TypeVar("O")  # noqa: E741

LONGEST = 1000
"""Characters of a label, a template, a name."""
LONGEST_CODE = 64
"""Characters of a language, a kind of noise."""
MOST_ENTRIES = 200
"""Of a dict, as of templates by language."""


def option(default: Any, about: str, **facts: Any) -> Any:
    """A field of options. ``facts``: its range (``ge``, ``gt``, ``le``, ``lt``, ``choices``), the
    characters that each text in it may have (``longest``), and what else the wire's schema says of it
    (``examples``, ``nullable``)."""
    return field(default=default, metadata={"about": about, **facts})


BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
}


@cache
def _ranged(kind: Any) -> list[Field[Any]]:
    """The options of a dataclass that have a range or a length."""
    return [each for each in fields(kind) if {"choices", "longest", *BOUNDS} & each.metadata.keys()]


def check_ranges(options: Any) -> None:
    """A UsageError for the first option that is out of its range, or too long. None means: not given."""
    for each in _ranged(options.__class__):
        value, facts = getattr(options, each.name), each.metadata
        if value is None:
            continue
        if "choices" in facts and value not in facts["choices"]:
            choices = ", ".join(facts["choices"])
            raise UsageError(f"{each.name}={value}", f"must be one of {choices}")
        if not all(holds(value, facts[name]) for name, holds in BOUNDS.items() if name in facts):
            raise UsageError(f"{each.name}={value}", f"must be {_range(facts)}")
        if "longest" in facts:
            _check_lengths(each.name, value, facts["longest"])


def _check_lengths(name: str, value: Any, longest: int) -> None:
    if isinstance(value, Mapping) and len(value) > MOST_ENTRIES:
        raise UsageError(f"{name} of {len(value)} entries", f"may have at most {MOST_ENTRIES}")
    for text in _texts(value):
        if len(text) > longest:
            raise UsageError(
                f"{name} of {len(text)} characters", f"may have at most {longest}", "shorten it"
            )


def _texts(value: Any) -> Iterator[str]:
    """All texts of an option."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, Sequence):
        yield from (part for part in value if isinstance(part, str))


def _range(facts: Any) -> str:
    if "ge" in facts and "le" in facts:
        return f"between {facts['ge']} and {facts['le']} (inclusive)"
    if "gt" in facts and facts.get("lt", float("inf")) != float("inf"):
        return f"between {facts['gt']} and {facts['lt']} (exclusive)"
    if facts.get("gt") == 0 and "le" in facts:
        return f"positive and at most {facts['le']:g}"
    if "ge" in facts:
        less = f" and less than {facts['lt']}" if "lt" in facts else ""
        return f"at least {facts['ge']}{less}"
    return "positive"


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Of a mode that has none of its own."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How items are to be predicted, the same for all items of a request.

    ``long`` says what happens to texts over the model's length (or ``max_length``, if less). With
    ``abstain_below``, by default the bundle's own if it has one, a prediction less sure than that
    has no label; 0 answers always. ``top_k`` keeps that many probabilities, the largest.
    ``require_translation``: in modes that read translations, an item without one is an error; else
    it is predicted as it is. ``options`` are the mode's own, e.g. ``Smoothing``.

    ``modes.settings`` makes them of keywords.
    """

    mode: Mode = "plain"
    long: Long = option("truncate", "what happens to texts over the limit", choices=LONG_CHOICES)
    language: str | Sequence[str] | None = option(
        None,
        "of the texts, instead of detecting it; two for pairs of mixed languages",
        examples=["de"],
        longest=LONGEST_CODE,
    )
    max_length: int | None = option(None, "tokens that are read of a text", ge=8)
    abstain_below: float | None = option(
        None, "give no label below this probability; 0: answer always", ge=0, le=1
    )
    top_k: int | None = option(None, "keep so many probabilities, the largest", ge=1)
    require_translation: bool = option(
        False, "translate, paired: an item without one is an error", nullable=True
    )
    options: object = NoOptions()

    def __post_init__(self) -> None:
        check_ranges(self)

    def of(self, kind: type[O]) -> O:
        """The mode's own options; the defaults where none were given."""
        return self.options if isinstance(self.options, kind) else kind()


@dataclass(frozen=True, slots=True)
class Translation:
    """A text in the language asked for; ``quality`` is the engine's own hint between 0 and 1, None
    where it gives none."""

    text: str
    engine: str
    quality: float | None = None


Why: TypeAlias = Literal[
    "language", "no_translator", "timeout", "failed", "nonsense", "resting", "disagrees"
]


@dataclass(frozen=True, slots=True)
class Untranslated:
    """Why there is no translation: a value, since a plain answer is better than none."""

    code: Why
    message: str


Outcome: TypeAlias = Translation | Untranslated


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
class Failure:
    """Why there is no answer."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Pairing:
    """What a prediction with a translation rests on. ``ratio`` is λ, how much of the translation was
    mixed into the text; ``agreement`` is how far the two agree, and ``weight`` the translation's share
    of the vote; ``reason`` says why there was no translation to predict with."""

    mixed: bool | None
    ratio: float | None = None
    agreement: float | None = None
    weight: float | None = None
    translation: Item | None = None
    translator: str | None = None
    quality: float | None = None
    reason: Untranslated | None = None

    def to_dict(self) -> dict[str, Any]:
        out = asdict(self)
        if self.mixed is None:  # translate-test mixes nothing
            del out["mixed"], out["ratio"]
        for name in ("agreement", "weight"):  # not every bundle knows them
            if out[name] is None:
                del out[name]
        for name in ("ratio", "agreement", "weight", "quality"):
            if out.get(name) is not None:
                out[name] = round(out[name], 6)
        return out


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer to one item.

    ``label`` is None where the item failed (``error`` says why) or the model abstained
    (``abstained`` says on what ground). ``tokens`` counts the whole text, also the part that was
    cut off (``truncated``). ``windows`` is the number of pieces that a long text was read in.
    ``warning``: the vocabulary was not kept for the text's language.
    """

    label: str | None
    probabilities: dict[str, float] = field(default_factory=dict)
    language: str | Sequence[str] | None = None
    tokens: int = 0
    truncated: bool = False
    windows: int = 1
    mode: str = "plain"
    abstained: Literal["votes", "confidence"] | None = None
    error: Failure | None = None
    smoothed: Votes | None = None
    pairing: Pairing | None = None
    warning: str | None = None
    bundle: str = ""
    version: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of this prediction; bundle and version stand once per answer, not here."""
        smoothed = {} if self.smoothed is None else asdict(self.smoothed)
        pairing = {} if self.pairing is None else self.pairing.to_dict()
        if certificate := smoothed.get("certificate"):
            smoothed["certificate"] = {k: v for k, v in certificate.items() if v is not None}
        warnings = [text for text in (self.warning, smoothed.get("warning")) if text]
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
            **({"warning": "; ".join(warnings)} if warnings else {}),
        }

    def _repr_html_(self) -> str:
        return Predictions([self])._repr_html_()


SHOWN = 20
"""Predictions that a notebook shows of many."""


class Predictions(list[Prediction]):
    """What ``predict`` returns: a list, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        """Texts of either direction stay apart (``dir``), and none of them is markup."""
        head = "".join(f"<th>{name}</th>" for name in ("", "label", "", "language", "note"))
        rows = [
            (str(number), each.label or "–", _strength(each), _spoken(each.language), _note(each))
            for number, each in enumerate(self[:SHOWN])
        ]
        cells = ("".join(f'<td dir="auto">{escape(cell)}</td>' for cell in row) for row in rows)
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        rest = f"<p>… and {len(self) - SHOWN} more</p>" if len(self) > SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _strength(prediction: Prediction) -> str:
    """Votes are no probabilities."""
    if prediction.smoothed is not None:
        votes = max(prediction.smoothed.votes.values(), default=0)
        return f"{votes} of {prediction.smoothed.draws} votes"
    best = max(prediction.probabilities.values(), default=None)
    return "" if best is None else f"{best:.1%}"


def _spoken(language: str | Sequence[str] | None) -> str:
    return language if isinstance(language, str) else ", ".join(language or ())


def _note(prediction: Prediction) -> str:
    """Why there is no label, and what else a reader should know."""
    if prediction.error is not None:
        return prediction.error.message
    said = (
        f"abstained ({prediction.abstained})" if prediction.label is None else "",
        "cut" if prediction.truncated else "",
        prediction.to_dict().get("warning"),
    )
    return "; ".join(part for part in said if part)
