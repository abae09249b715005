"""``docs/routes.md``: every route, from the OpenAPI description that the service itself gives.

Run by ``python -m xlt_serve.serving.routes_table``.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xlt_serve import modes, types, wire
from xlt_serve.serving import openapi
from xlt_serve.serving.examples import PREDICTIONS, answer
from xlt_serve.serving.routes import OPERATIONS, Key, Operation

TABLE = Path(__file__).parents[2] / "docs" / "routes.md"

HEAD = """\
# Routes

Made of the service's own OpenAPI description, which a running service has at `/docs.json`. Kinds are those of
JSON; `xlt_serve/wire.schema.json` is the whole schema. A request with a field that is not listed is refused.
Answers may have more fields than are listed. How routes are used: [serving](serving.md). Whose key is whose:
[serving safely](serving-safely.md#keys).
"""
KEYS: dict[Key, str] = {
    "": "no key",
    "scrape": "a key for scraping or a user's, where others than this machine reach the service",
    "outside": "a user's key, where others than this machine reach the service",
    "user": "a user's key, where `XLT_API_KEYS` is set",
    "admin": "an admin key",
}
FLAT: dict[str, tuple[type, ...]] = {
    "Prediction": (types.Prediction, types.Votes, types.Pairing),
    "Certificate": (types.Certificate,),
}
"""The dataclasses whose fields a model has, and whose docstrings say what these mean."""
WHERE = {types.Votes: "in `smoothed`", types.Pairing: "in `paired`, `translate`"}


def kind_of(schema: dict[str, Any]) -> str:
    """What a value may be, without its range; null is left out where something else may be."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(kind_of(part) for part in schema["anyOf"] if part != {"type": "null"})
    many = schema.get("items") or schema.get("additionalProperties")
    if isinstance(many, dict):
        exactly = "2 " if schema.get("maxItems") == schema.get("minItems") == 2 else ""
        return f"{schema['type']} of {exactly}{kind_of(many)}"
    return str(schema["type"])


def range_of(schema: dict[str, Any]) -> str:
    """``at least 1, at most 100,000``, of the schema or of the first branch that has a range."""
    for part in (schema, *schema.get("anyOf", ())):
        said = {
            "at least": part.get("minimum"),
            "over": part.get("exclusiveMinimum"),
            "at most": part.get("maximum"),
            "below": part.get("exclusiveMaximum"),
        }
        found = {word: value for word, value in said.items() if value is not None}
        if found:
            written = [
                f"{value:,g}" if value % 1 else f"{int(value):,}" for value in found.values()
            ]
            return ", ".join(map(" ".join, zip(found, written, strict=True)))
    return ""


def defaults() -> dict[str, Any]:
    """Of the options of modes, which the schema has as null: of no mode but those that know them."""
    kinds = [mode.options for mode in modes.MODES.values()]
    return {each.name: each.default for kind in kinds for each in dataclasses.fields(kind)}


def fields(model: dict[str, Any]) -> Iterator[str]:
    """The table of a request: what may be asked."""
    yield from ("| field | kind | default | meaning |", "|---|---|---|---|")
    for name, schema in model["properties"].items():
        default = schema.get("default")
        default = defaults().get(name) if default is None else default
        told = "" if default is None else f"`{json.dumps(default)}`"
        told = "required" if name in model.get("required", ()) else told
        about = "; ".join(filter(None, (schema.get("description", ""), range_of(schema))))
        yield f"| `{name}` | {kind_of(schema)} | {told} | {about} |"


def example(name: str, request: dict[str, Any]) -> Iterator[str]:
    yield from ("", "```json", json.dumps(request, ensure_ascii=False), "```")
    if name in PREDICTIONS:
        yield from ("", "answers", "", "```json", shown(answer(name)), "```")


def shown(body: dict[str, Any]) -> str:
    """A line for each prediction, and one for the rest."""
    rest = {key: value for key, value in body.items() if key != "predictions"}
    lines = ",\n ".join(json.dumps(each, ensure_ascii=False) for each in body["predictions"])
    return f'{{"predictions": [\n {lines}],\n {json.dumps(rest)[1:]}'


def operation(each: Operation, models: dict[str, Any]) -> Iterator[str]:
    about = each.about.partition(";")[0]
    about += "" if about.endswith("?") else "."
    yield from ("", f"## `{each.method} {each.path}`", "", f"{about} Needs {KEYS[each.key]}.")
    if not each.errors:
        return
    gives = f"200 with [{each.gives}](#{each.gives.lower()})" if each.gives else "200"
    refusals = ", ".join(map(str, each.errors))
    yield from ("", f"Answers {gives}, or [a refusal](#refusals): {refusals}.")
    if each.takes:
        yield from ("", *fields(models[each.takes]))
    for name, request in each.examples.items():
        yield from example(name, request)


def body(name: str, model: dict[str, Any]) -> Iterator[str]:
    """What an answer has, and what its fields mean."""
    flat = FLAT.get(name, ())
    yield from ("", f"### {name}")
    for about in [inspect.getdoc(kind) or "" for kind in flat] or [model["description"]]:
        yield from ("", about.replace("``", "`").replace("None", "null"))
    yield from ("", "| field | kind | |", "|---|---|---|")
    place = {f.name: WHERE[kind] for kind in flat[1:] for f in dataclasses.fields(kind)}
    for field, schema in model["properties"].items():
        sent = "" if field in model.get("required", ()) else place.get(field, "may be missing")
        null = " or null" if {"type": "null"} in schema.get("anyOf", ()) else ""
        yield f"| `{field}` | {kind_of(schema)}{null} | {sent} |"


def table() -> str:
    models = openapi.document()["components"]["schemas"]
    requests = {kind.__name__ for kind in wire.REQUESTS}
    lines = [HEAD.rstrip()]
    for each in OPERATIONS:
        lines += operation(each, models)
    lines += ["", "## Answers"]
    for name, model in models.items():
        if name not in requests:
            lines += body(name, model)
    lines += ["", "## Refusals", "", "Each has the body [Error](#error).", ""]
    lines += ["| status | |", "|---|---|"]
    lines += [f"| {status} | {about} |" for status, about in openapi.ERRORS.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
