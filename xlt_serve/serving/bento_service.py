"""BentoML's service with our routes before its own."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import bentoml
from starlette.applications import Starlette
from starlette.middleware import Middleware

from xlt_serve.serving import bounded_http, heartbeat, log
from xlt_serve.serving.inner_calls import TrustedSocket, Unpickled
from xlt_serve.serving.middleware import App, Receive, Scope, Send
from xlt_serve.serving.routes import OPERATIONS
from xlt_serve.serving.settings import Environment

OURS = frozenset(operation.path for operation in OPERATIONS if operation.ours)

LEFT_OUT = "TimeoutMiddleware"
"""It keeps a timer of every request until it would have rung, about 1 kB each, and has no switch.
Requests have time-outs of ours."""


class Direct:
    """Hands requests for paths of ours to our application, before BentoML's router and parser."""

    def __init__(self, app: App, ours: App) -> None:
        self.app, self.ours = app, ours

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope["type"] == "http" and scope["path"] in OURS
        await (self.ours if ours else self.app)(scope, receive, send)


def _largest_body(ours: Starlette) -> int:
    environment: Environment = ours.state.service.environment
    return environment.max_body


class RoutedService(bentoml.Service[Any]):  # type: ignore[misc]
    def to_asgi(self, is_main: bool = True) -> Starlette:
        """The application of a worker of this service; whoever only depends on it never calls this.

        ``is_main``: False where the worker belongs to another service, whose calls are pickled."""
        bounded_http.install()
        app: Starlette = super().to_asgi(is_main)
        ((ours, *_),) = self.mount_apps
        log.take_over(ours.state.log)
        ours.state.dead = heartbeat.end_process  # of a process that is ours
        layers = [
            one for one in app.user_middleware if getattr(one.cls, "__name__", "") != LEFT_OUT
        ]
        if is_main:
            app.state.at_the_door = ours.state.gate.at_the_door
        else:
            largest = partial(_largest_body, ours)
            layers = [Middleware(TrustedSocket), *layers, Middleware(Unpickled, largest=largest)]
        app.user_middleware = [*layers, Middleware(Direct, ours=ours)]
        return app

    def schema(self) -> dict[str, Any]:
        """Made once: it takes as long as ten requests, and everybody may ask for it."""
        return self._schema

    @cached_property
    def _schema(self) -> dict[str, Any]:
        made: dict[str, Any] = super().schema()
        return made
