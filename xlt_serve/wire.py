"""What goes over the wire, as models that check it; ``wire.schema.json`` is made of them.

Requests are strict: an unknown key or a wrong type is refused, and the refusal names it. Answers may
carry more than is said here, so that an older client reads a newer service. Options, their ranges and
the fields of answers are those of ``types`` and of the modes: they are declared there, once.
"""

from __future__ import annotations

import difflib
import json
import operator
from collections.abc import Collection
from dataclasses import MISSING, fields
from functools import reduce
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    create_model,
)
from pydantic.json_schema import WithJsonSchema, models_json_schema

from xlt_serve import modes, types
from xlt_serve.errors import UsageError, XltError
from xlt_serve.modes.base import CLASSIFY, ZERO_SHOT
from xlt_serve.types import Settings

SCHEMA = Path(__file__).parent / "wire.schema.json"

Two = Annotated[list[str], Field(min_length=2, max_length=2)]
Text = Annotated[str, Field(min_length=1, max_length=types.LONGEST)]
SHAPES: dict[str, Any] = {"language": str | Two | None, "translation": str | Two | None}
"""What Python has as a tuple of two is a list in JSON."""

LONGEST_DEADLINE = 3_600_000
"""Milliseconds: an hour."""

MOST_LABELS = 100
"""Of a zero-shot request."""

MOST_PROBLEMS = 20
"""That a refusal names. To find more takes time that others need."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def registered(name: object) -> str:
    """A mode that ``/classify`` takes."""
    known = modes.names()
    if not isinstance(name, str) or name not in known:
        choices = ", ".join(map(repr, known[:-1])) + f" or {known[-1]!r}"
        raise ValueError(f"Input should be {choices}")
    return name


ModeName = Annotated[
    str,
    PlainValidator(registered),
    WithJsonSchema({"type": "string", "enum": list(modes.names())}),
]


def options_of(kind: type, leave: tuple[str, ...] = (), nullable: bool = False) -> dict[str, Any]:
    """The options of a dataclass as fields of a model; ``nullable``: null means the default."""
    hints = get_type_hints(kind)
    out: dict[str, Any] = {}
    for each in fields(kind):
        facts = each.metadata
        if each.name in leave:
            continue
        hint: Any = SHAPES.get(each.name, hints[each.name])
        default = each.default
        if "longest" in facts:
            hint = limited(hint, facts["longest"])
        if nullable or facts.get("nullable"):
            hint, default = hint | None, None
        bounds = {name: facts[name] for name in ("ge", "gt", "le") if name in facts}
        if facts.get("lt", float("inf")) != float("inf"):
            bounds["lt"] = facts["lt"]
        examples = {"examples": facts["examples"]} if "examples" in facts else {}
        field = Field(default, description=facts["about"], **bounds, **examples)
        out[each.name] = (hint, field)
    return out


def limited(hint: Any, longest: int) -> Any:
    """The type, with so many characters at most in every text of it, and so many entries in a dict."""
    if hint is str:
        return Annotated[str, Field(max_length=longest)]
    if get_origin(hint) is Annotated:
        return Annotated[limited(hint.__origin__, longest), *hint.__metadata__]
    parts = tuple(limited(part, longest) for part in get_args(hint))
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        return reduce(operator.or_, parts)
    if not parts:
        return hint
    made = get_origin(hint)[parts]
    most = Field(max_length=types.MOST_ENTRIES)
    return Annotated[made, most] if get_origin(hint) is dict else made


class Addressed(Strict):
    """What every request may say beside its options."""

    bundle: str | None = Field(
        None,
        max_length=types.LONGEST,
        description="which of the loaded bundles; else the first",
    )
    deadline_ms: int | None = Field(
        None, ge=1, le=LONGEST_DEADLINE, description="after this time the answer is of no use: 408"
    )


def _given(name: str) -> dict[str, Any]:
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


class ClassifyBody(Addressed):
    # For readers of the schema; ``answering.items_of`` checks it and says what is wrong.
    model_config = ConfigDict(json_schema_extra={"oneOf": [_given("texts"), _given("pairs")]})
    # Items are of any type here: a wrong one gets its own error and does not sink its neighbours.
    texts: list[Any] | str | None = Field(
        None, description="texts to classify, or one", examples=[["El partido terminó en empate."]]
    )
    pairs: list[Any] | None = Field(
        None,
        description="pairs of texts, or one, for bundles that take pairs",
        examples=[[["A man sleeps.", "Somebody is asleep."]]],
    )
    mode: ModeName = Field("plain", description="how to predict; not every bundle has every mode")
    translations: Annotated[list[str | Two | None], Field(fail_fast=True)] | None = Field(
        None, description="translate, paired: one for each item, or null"
    )


class ZeroShotBody(Addressed):
    texts: list[Any] | str = Field(
        description="texts to label, or one", examples=[["Der Zug fährt heute nicht."]]
    )
    labels: list[Text] = Field(
        min_length=1,
        max_length=MOST_LABELS,
        description="candidate labels",
        examples=[["travel", "sports", "health"]],
    )


def _own(route: str) -> dict[str, Any]:
    """The options of all modes of a route; where there are several, each may be left null."""
    names = modes.names(route)
    out: dict[str, Any] = {}
    for name in names:
        options = modes.MODES[name].options
        out |= options_of(options, leave=("labels",), nullable=len(names) > 1)
    return out


ClassifyRequest: type[ClassifyBody] = create_model(
    "ClassifyRequest",
    __base__=ClassifyBody,
    __doc__="Texts or pairs to classify, and the options for all of them.",
    **options_of(Settings, leave=("mode", "options")),
    **_own(CLASSIFY),
)
ZeroShotRequest: type[ZeroShotBody] = create_model(
    "ZeroShotRequest",
    __base__=ZeroShotBody,
    __doc__="Texts and the labels that they may have, for bundles trained on entailment.",
    **options_of(Settings, leave=("mode", "options", "long", "require_translation")),
    **_own(ZERO_SHOT),
)


class SwapRequest(Strict):
    """Load a bundle anew, under a name that requests call it by."""

    name: Text = Field(description="what requests call it", examples=["topics"])
    bundle: Text | None = Field(
        None, description="shipped name or folder on the server; else where it was loaded from"
    )
    force: bool = Field(
        False, description="also if its labels or its task are others than those of this name"
    )


class UnloadRequest(Strict):
    """Give up a bundle; requests that are under way are answered."""

    name: Text = Field(description="what requests call it", examples=["topics-paired"])


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


def shown(kind: type, doc: str, *flat: type, leave: tuple[str, ...] = ()) -> Any:
    """The model of a dataclass in answers. ``flat``: dataclasses whose fields lie beside its own, as
    ``to_dict`` writes them, where an answer has them; its own are always sent then."""
    hints = get_type_hints(kind)
    made: dict[str, Any] = {}
    for each in fields(kind):
        required = each.default is MISSING or (flat and each.name not in ADDED)
        if each.name not in leave:
            default = ... if required else each.default
            made[each.name] = (_hint(each.name, hints[each.name]), default)
    for further in flat:
        for name, hint in get_type_hints(further).items():
            made[name] = (_hint(name, hint) | None, None)
    return create_model(kind.__name__, __base__=Open, __doc__=doc, **made)


def _hint(name: str, hint: Any) -> Any:
    """With models in the place of dataclasses."""
    for plain, model in NESTED.items():
        if hint == plain | None:
            return model | None
    return SHAPES.get(name, hint)


ADDED = ("windows", "warning")
"""What the first services did not send, and what not every answer has."""
NESTED: dict[Any, Any] = {}
"""The models of dataclasses that stand within others."""

if TYPE_CHECKING:
    Failure: TypeAlias = types.Failure
    Certificate: TypeAlias = types.Certificate
    Prediction: TypeAlias = Any
else:
    Failure = shown(types.Failure, "Why there is no answer.")
    Certificate = shown(
        types.Certificate,
        "The label holds for every change smaller than this, but for one answer in 1/alpha,"
        " if rounding changes no more votes than was assumed (docs/decisions/0011).",
    )
    NESTED |= {
        types.Failure: Failure, types.Untranslated: Failure, types.Certificate: Certificate,
    }  # fmt: skip
    Prediction = shown(
        types.Prediction,
        "The answer to one item.",
        types.Votes,
        types.Pairing,
        leave=("smoothed", "pairing", "bundle", "version"),
    )


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


class Warned(Open):
    """What an operator should see to, in any of the workers: a code, and what it means."""

    code: str
    message: str
    bundle: str | None = None


class Models(Open):
    """What is loaded."""

    models: list[Model]
    generation: int
    workers: int
    warnings: list[Warned] = []


class Error(Open):
    """The body of every answer that is no success."""

    error: Failure


REQUESTS = (ClassifyRequest, ZeroShotRequest, SwapRequest, UnloadRequest)
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
    """A request of this kind, or ``Invalid`` with its first problems; texts don't appear in it."""
    value = _without_rest(kind, value)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise Invalid(_problems(error, kind.model_fields)) from None


def _without_rest(kind: type[BaseModel], value: object) -> object:
    """Only so many of the keys that a model does not know: each is a problem of its own. So is each entry
    of a dict, which pydantic counts last."""
    if not isinstance(value, dict):
        return value
    most = types.MOST_ENTRIES
    for name, part in value.items():
        if isinstance(part, dict) and len(part) > most:
            raise Invalid([(_shown(name), f"Dictionary should have at most {most} items")])
    known = kind.model_fields
    if len(value) <= len(known):
        return value
    unknown = [name for name in value if name not in known][:MOST_PROBLEMS]
    return {name: value[name] for name in (*unknown, *(known.keys() & value.keys()))}


def read(kind: type[M], value: object, source: str) -> M:
    """An answer of this kind from ``source``."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        (where, what), *_ = _problems(error)
        raise BadAnswer(
            source, f"answers what the schema does not allow ({where or 'body'}: {what})"
        ) from None


def _problems(error: ValidationError, known: Collection[str] = ()) -> list[tuple[str, str]]:
    """Where and what; the kinds that a field may be of are one problem, not one each."""
    found: dict[str, dict[str, None]] = {}
    for problem in error.errors(include_input=False, include_url=False, include_context=False):
        # The tail of a location names branches of a union, which only a reader of this file knows.
        where = str(problem["loc"][0]) if problem["loc"] else ""
        said = problem["msg"].removeprefix("Value error, ")[:200]
        if problem["type"] == "extra_forbidden":
            said += _near(where, known)
        found.setdefault(_shown(where), {}).setdefault(said)
    return [
        (where, ", or ".join(list(what)[:3])) for where, what in list(found.items())[:MOST_PROBLEMS]
    ]


def _near(name: str, known: Collection[str]) -> str:
    """What was meant by a key that is none."""
    near = difflib.get_close_matches(_shown(name), known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _shown(name: str) -> str:
    return name[:50].encode("ascii", "backslashreplace").decode()[:50]


def settings_of(request: Addressed, mode: str) -> Settings:
    """What a request asks of this mode. Null is the default; options of other modes are left aside."""
    known = modes.option_names(modes.by_name(mode))
    return modes.settings(mode, **{n: v for n, v in request if v is not None and n in known})


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
