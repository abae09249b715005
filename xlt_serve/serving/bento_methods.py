"""The routes as BentoML's methods: what its schema says of them, and calls from within a process.

Over HTTP the routes answer, not these methods: BentoML's own parser takes what we refuse, refuses
what we take, and is slower.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from http import HTTPStatus
from types import SimpleNamespace
from typing import Annotated, Any

import bentoml
import httpx
from bentoml.exceptions import BentoMLException
from pydantic import ConfigDict, create_model
from pydantic.json_schema import WithJsonSchema
from starlette.applications import Starlette

from xlt_serve import wire
from xlt_serve.serving.inner_calls import Trusted
from xlt_serve.serving.middleware import Gate, Guard
from xlt_serve.serving.routes import OPERATIONS

ANSWER = {"type": "object", "description": "the answer; /docs.json has its schema"}
Answer = Annotated[dict[str, Any], WithJsonSchema(ANSWER)]
"""A client that knows a field to be a list fails on null, and leaves out fields that it does not
know; of an object it takes all."""


class Arguments(bentoml.IODescriptor):  # type: ignore[misc]
    """Of a method, unchecked: the service refuses what is wrong, in the same words to all clients."""

    model_config = ConfigDict(extra="forbid")

    def model_dump_json(self, **_: Any) -> str:
        """What was given. pydantic's own fails on half characters, which only their item should."""
        return json.dumps(self.model_dump(exclude_unset=True))


def arguments(name: str) -> type[Arguments]:
    """Those of an operation; texts come first, so that they may be given by position."""
    (kind,) = (getattr(wire, each.takes) for each in OPERATIONS if each.name == name)
    shown = kind.model_json_schema()["properties"]
    own = [name for name in kind.model_fields if name not in wire.Addressed.model_fields]
    fields: dict[str, Any] = {}
    for field in [*own, *(name for name in shown if name not in own)]:
        default = kind.model_fields[field]
        hint = Annotated[Any, WithJsonSchema(free(shown[field]))]
        fields[field] = (hint, ... if default.is_required() else default.default)
    made: type[Arguments] = create_model(kind.__name__, __base__=Arguments, **fields)
    return made


def free(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema in words that BentoML's client does not act on: told of a list, it makes one of
    the letters of a text, and of several types it takes the first."""
    kept = ("title", "description", "default", "examples")
    kind = {name: value for name, value in schema.items() if name not in kept}
    about = {name: value for name, value in schema.items() if name in kept}
    return {**about, "oneOf": kind.get("anyOf", [kind])}


NONE = SimpleNamespace(started=False)


class InProcess:
    """The service in a process that does not serve it, as ``bentoml.depends(XltService)`` has it
    without workers: it starts with the first call."""

    def __init__(self, app: Starlette, gate: Gate) -> None:
        self._app = app
        self._guarded = Trusted(Guard(app, gate))
        self._starting = asyncio.Lock()
        self._stack = contextlib.AsyncExitStack()

    async def call(self, path: str, /, **asked: Any) -> dict[str, Any]:
        async with self._starting:
            if not getattr(self._app.state, "service", NONE).started:
                lifespan = self._app.router.lifespan_context(self._app)
                await self._stack.enter_async_context(lifespan)
        transport = httpx.ASGITransport(app=self._guarded)
        async with httpx.AsyncClient(transport=transport, base_url="http://xlt-serve") as client:
            content = json.dumps(asked).encode()
            headers = {"Content-Type": "application/json"}
            answer = await client.post(path, content=content, headers=headers, timeout=None)
        if answer.is_error:  # as BentoML's clients raise it
            status = HTTPStatus(answer.status_code)
            kind = BentoMLException.error_mapping.get(status, BentoMLException)
            raise kind(answer.text, error_code=status)
        found: dict[str, Any] = answer.json()
        return found

    async def close(self) -> None:
        await self._stack.aclose()
