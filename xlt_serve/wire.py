"""What goes over the wire, as models that check it; ``wire.schema.json`` is made of them.

Requests are strict: an unknown key or a wrong type is refused, and the refusal names it. Answers may
carry more than is said here, so that an older client reads a newer service.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.json_schema import models_json_schema

from xlt_serve.errors import UsageError, XltError
from xlt_serve.types import Settings, Smoothing

SCHEMA = Path(__file__).parent / "wire.schema.json"

Mode = Literal["plain", "translate", "paired", "smoothed"]
Two = Annotated[list[str], Field(min_length=2, max_length=2)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Common(Strict):
    """What every request may say."""

    language: str | Two | None = Field(
        None,
        description="of the texts, instead of detecting it; two for pairs of mixed languages",
        examples=["de"],
    )
    top_k: int | None = Field(None, ge=1, description="keep so many probabilities, the largest")
    max_length: int | None = Field(None, ge=8, description="tokens that are read of a text")
    abstain_below: float | None = Field(
        None, ge=0, le=1, description="give no label below this probability; 0: answer always"
    )
    bundle: str | None = Field(None, description="which of the loaded bundles; else the first")
    deadline_ms: int | None = Field(
        None, ge=1, le=3_600_000, description="after this time the answer is of no use: 408"
    )


class ClassifyRequest(Common):
    """Texts or pairs to classify, and the options for all of them."""

    # Items are of any type here: a wrong one gets its own error and does not sink its neighbours.
    texts: list[Any] | str | None = Field(
        None, description="texts to classify, or one", examples=[["El partido terminó en empate."]]
    )
    pairs: list[Any] | None = Field(
        None,
        description="pairs of texts, or one, for bundles that take pairs",
        examples=[[["A man sleeps.", "Somebody is asleep."]]],
    )
    mode: Mode = Field("plain", description="how to predict; not every bundle has every mode")
    long: Literal["truncate", "windows", "error"] = Field(
        "truncate", description="what happens to texts over the limit"
    )
    translations: list[str | Two | None] | None = Field(
        None, description="translate, paired: one for each item, or null"
    )
    require_translation: bool | None = Field(
        None, description="translate, paired: an item without one is an error"
    )
    samples: int | None = Field(
        None, ge=1, le=100_000, description="smoothed: most draws of a text"
    )
    alpha: float | None = Field(
        None, gt=0, lt=1, description="smoothed: how often an answer may be wrong"
    )
    radius: float | None = Field(
        None, gt=0, description="smoothed: to certify, in the noise's norm"
    )
    words: int | None = Field(None, ge=1, description="smoothed: words to certify, synonym noise")
    noise: str | None = Field(
        None, description="smoothed: gaussian, uniform or synonym, else as trained"
    )
    synonyms: Literal["groups", "neighbours"] | None = Field(
        None, description="smoothed: how synonyms are drawn, else as trained, else groups"
    )
    scale: float | None = Field(
        None, gt=0, description="smoothed: σ or half-width, else as trained"
    )
    seed: int | None = Field(
        None, ge=0, lt=2**63, description="smoothed: of the draws, else a new one"
    )


class ZeroShotRequest(Common):
    """Texts and the labels that they may have, for bundles trained on entailment."""

    texts: list[Any] | str = Field(
        description="texts to label, or one", examples=[["Der Zug fährt heute nicht."]]
    )
    labels: list[Text] = Field(
        min_length=1,
        max_length=100,
        description="candidate labels",
        examples=[["travel", "sports", "health"]],
    )
    template: str | dict[str, str] | None = Field(
        None,
        description="the hypothesis, with {} for the label; one, or by language with “*” for the rest",
        examples=["This text is about {}.", {"de": "In diesem Text geht es um {}.", "*": "{}"}],
    )
    multi_label: bool = Field(
        False, description="each label on its own, instead of one of them for each text"
    )
    scorer: Literal["nli", "similarity"] | None = Field(
        None, description="entailment, or likeness of text and hypothesis; else the bundle's better"
    )


class SwapRequest(Strict):
    """Load a bundle anew, under a name that requests call it by."""

    name: Text = Field(description="what requests call it", examples=["topics"])
    bundle: Text | None = Field(
        None, description="shipped name or folder on the server; else where it was loaded from"
    )


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Failure(Open):
    """Why there is no answer."""

    code: str
    message: str


class Certificate(Open):
    """The label holds for every change smaller than this, but for one answer in 1/alpha."""

    norm: str
    radius: float | None = None
    words: int | None = None
    of: int | None = None
    at: str
    noise: str
    scale: float | None = None
    synonyms: str | None = None
    alpha: float


class Prediction(Open):
    """The answer to one item."""

    label: str | None
    probabilities: dict[str, float]
    language: str | Two | None
    tokens: int
    truncated: bool
    mode: str
    abstained: Literal["votes", "confidence"] | None
    error: Failure | None
    windows: int = 1
    votes: dict[str, int] | None = None
    draws: int | None = None
    seed: int | None = None
    lower_bound: float | None = None
    certificate: Certificate | None = None
    warning: str | None = None
    mixed: bool | None = None
    ratio: float | None = None
    translation: str | Two | None = None
    translator: str | None = None
    quality: float | None = None
    reason: Failure | None = None


class BundleName(Open):
    """Which weights answered."""

    name: str
    version: str


class Timings(Open):
    """Milliseconds: from arrival to the first run, in runs, and in all."""

    queue_ms: float
    run_ms: float
    predict_ms: float


class Answer(Open):
    """One prediction for each item, in order."""

    predictions: list[Prediction]
    bundle: BundleName
    timings: Timings


class Model(Open):
    """A loaded bundle: where requests find it and what its manifest says."""

    name: str
    default: bool
    loaded_at: str
    manifest: dict[str, Any]


class Models(Open):
    """What is loaded."""

    models: list[Model]
    generation: int
    workers: int


class Error(Open):
    """The body of every answer that is no success."""

    error: Failure


REQUESTS = (ClassifyRequest, ZeroShotRequest, SwapRequest)
ANSWERS = (Answer, Models, Error)
M = TypeVar("M", bound=BaseModel)


class Invalid(UsageError):
    """A request that does not fit its schema; ``problems`` are (where, what)."""

    code = "invalid"

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("", "; ".join(f"{where or 'body'}: {what}" for where, what in problems))


class BadAnswer(XltError):
    """A service that answers something else than the schema says."""

    code = "bad_answer"


def parse(kind: type[M], value: object) -> M:
    """A request of this kind, or ``Invalid`` with every problem; texts don't appear in it."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise Invalid(_problems(error)) from None


def read(kind: type[M], value: object, source: str) -> M:
    """An answer of this kind from ``source``."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        (where, what), *_ = _problems(error)
        raise BadAnswer(
            source, f"answers what the schema does not allow ({where or 'body'}: {what})"
        ) from None


def _problems(error: ValidationError) -> list[tuple[str, str]]:
    """Where and what; the kinds that a field may be of are one problem, not one each."""
    found: dict[str, dict[str, None]] = {}
    for problem in error.errors(include_input=False, include_url=False, include_context=False):
        # The tail of a location names branches of a union, which only a reader of this file knows.
        where = str(problem["loc"][0]) if problem["loc"] else ""
        shown = where.encode("ascii", "backslashreplace").decode()[:50]
        found.setdefault(shown, {}).setdefault(problem["msg"][:200])
    return [(where, ", or ".join(list(what)[:3])) for where, what in list(found.items())[:20]]


def settings_of(request: BaseModel) -> Settings:
    """What a request asks of the pipeline; an option that this version has not got is refused."""
    asked = {
        name: value
        for name, value in request
        if value is not None and name not in {"texts", "pairs", "bundle", "deadline_ms"}
    }
    here = {field.name for field in fields(Settings)} - {"smoothing"}
    smooth = {field.name for field in fields(Smoothing)}
    if unknown := sorted(set(asked) - here - smooth):
        raise UsageError(unknown[0], "is not supported by this service", "leave it out")
    settings = {name: value for name, value in asked.items() if name in here}
    votes = {name: value for name, value in asked.items() if name in smooth}
    return Settings(**settings, smoothing=Smoothing(**votes))


def schema() -> dict[str, Any]:
    """The JSON Schema of all that goes over the wire."""
    requests = [(kind, "validation") for kind in REQUESTS]
    answers = [(kind, "validation") for kind in ANSWERS]
    _, made = models_json_schema(
        [*requests, *answers],  # type: ignore[list-item]
        title="xlt-serve on the wire",
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def schema_text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
