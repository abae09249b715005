"""The OpenAPI description: routes and examples; the shapes come from the wire's schema."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from xlt_serve import wire
from xlt_serve.serving.examples import PREDICTIONS, REQUESTS, answer

_PREFIX = "#/components/schemas/"
ERRORS = {
    400: "the body is not JSON",
    401: "a key is needed",
    403: "not allowed here",
    404: "no such bundle",
    408: "the body did not come in time, or the answer was not ready by the request's deadline_ms",
    409: "another swap is under way",
    413: "too many bytes or items",
    415: "not a JSON body",
    422: "a request that does not fit; the message says where",
    429: "too much is waiting; Retry-After says when to come back",
    500: "the service failed",
    503: "shutting down, or not ready yet",
    504: "not ready within the time that the service allows a request",
}


@cache
def document() -> dict[str, Any]:
    text = wire.SCHEMA.read_text(encoding="utf-8").replace("#/$defs/", _PREFIX)
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
        "paths": {
            "/classify": {
                "post": _post(
                    "classify",
                    "Classify texts, or pairs of texts",
                    "ClassifyRequest",
                    "Answer",
                    REQUESTS,
                    (400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 504),
                )
            },
            "/zero_shot": {
                "post": _post(
                    "zero_shot",
                    "Give texts one of any labels, or several",
                    "ZeroShotRequest",
                    "Answer",
                    {
                        "topics": {
                            "texts": ["Der Zug fährt heute nicht."],
                            "labels": ["travel", "sports", "health"],
                            "template": {"de": "In diesem Text geht es um {}.", "*": "About {}."},
                        }
                    },
                    (400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 504),
                )
            },
            "/models": {
                "get": {
                    "operationId": "models",
                    "summary": "What is loaded, with its manifest",
                    "responses": _responses("Models", (401,)),
                },
                "post": _post(
                    "swap",
                    "Load a bundle anew while requests go on; needs an admin key",
                    "SwapRequest",
                    "Models",
                    {
                        "again": {"name": "topics"},
                        "other": {"name": "topics", "bundle": "/bundles/v2"},
                    },
                    (400, 401, 403, 404, 408, 409, 413, 415, 422, 500),
                ),
            },
            **{
                f"/{name}": {
                    "get": {
                        "operationId": name,
                        "summary": about,
                        "security": [],
                        "responses": {"200": {"description": "yes"}} | _errors((503,)),
                    }
                }
                for name, about in (("livez", "Is it alive?"), ("readyz", "Is it warm?"))
            },
        },
        "components": {
            "schemas": json.loads(text)["$defs"],
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _post(
    name: str,
    about: str,
    takes: str,
    gives: str,
    examples: dict[str, Any],
    errors: tuple[int, ...],
) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": about,
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"$ref": _PREFIX + takes},
                    "examples": {key: {"value": value} for key, value in examples.items()},
                }
            },
        },
        "responses": _responses(gives, errors, [name for name in examples if name in PREDICTIONS]),
    }


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
