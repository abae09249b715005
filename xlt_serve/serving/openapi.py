"""The OpenAPI description, from the table of routes and the wire's schema."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from xlt_serve import wire
from xlt_serve.serving.examples import PREDICTIONS, answer
from xlt_serve.serving.routes import OPERATIONS, Operation

_PREFIX = "#/components/schemas/"
ERRORS = {
    400: "the body is not JSON",
    401: "a key is needed",
    403: "not allowed here",
    404: "no such bundle",
    408: "the body did not come in time, or the answer was not ready by the request's deadline_ms",
    409: "another swap is under way, the last bundle would go, or labels or task would change without force",
    413: "too many bytes, items or pairs, or too long an answer",
    415: "not a JSON body",
    422: "a request that does not fit; the message says where",
    429: "too much is waiting; Retry-After says when to come back",
    500: "the service failed",
    503: "shutting down, not ready yet, or the bundle is not available",
    504: "not ready within the time that the service allows a request",
}


@cache
def document() -> dict[str, Any]:
    text = wire.SCHEMA.read_text(encoding="utf-8").replace("#/$defs/", _PREFIX)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        if operation.errors:  # the others have no contract: the page, the metrics, this description
            paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "xlt-serve",
            "description": "Robust cross-lingual text classification.",
            "version": _version(),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"header": []}, {}],
        "paths": paths,
        "components": {
            "schemas": json.loads(text)["$defs"],
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    out: dict[str, Any] = {"operationId": operation.name, "summary": operation.about}
    if not operation.key:
        out["security"] = []
    if operation.takes:
        examples = {key: {"value": value} for key, value in operation.examples.items()}
        body = {"schema": {"$ref": _PREFIX + operation.takes}, "examples": examples}
        out["requestBody"] = {"required": True, "content": {"application/json": body}}
    if operation.gives:
        answered = [name for name in operation.examples if name in PREDICTIONS]
        out["responses"] = _responses(operation.gives, operation.errors, answered)
    else:
        out["responses"] = {"200": {"description": "yes"}} | _errors(operation.errors)
    return out


def _responses(gives: str, errors: tuple[int, ...], shown: Sequence[str] = ()) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": {"$ref": _PREFIX + gives}}
    if shown:
        body["examples"] = {name: {"value": answer(name)} for name in shown}
    given = {"description": "the answer", "content": {"application/json": body}}
    return {"200": given} | _errors(errors)


def _errors(errors: tuple[int, ...]) -> dict[str, Any]:
    body = {"application/json": {"schema": {"$ref": f"{_PREFIX}Error"}}}
    out: dict[str, Any] = {}
    for status in errors:
        out[str(status)] = {"description": ERRORS[status], "content": body}
        if status in (429, 503):
            seconds = {"description": "seconds", "schema": {"type": "integer"}}
            out[str(status)]["headers"] = {"Retry-After": seconds}
    return out


def _version() -> str:
    try:
        return importlib.metadata.version("xlt-serve")
    except importlib.metadata.PackageNotFoundError:  # in a bento there is only the source
        return "source"
