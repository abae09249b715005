"""The BentoML service: processes, probes and metrics are BentoML's, the routes are ``serving.app``'s."""

from __future__ import annotations

import os
from typing import Any, cast

import bentoml
from bentoml._internal.server.http import traffic

from xlt_serve.serving import tracing
from xlt_serve.serving.app import create
from xlt_serve.serving.middleware import App, Gate, Guard, Receive, Scope, Send


class Untimed:
    """In place of BentoML's time-out, which keeps a timer of every request until it would have rung,
    about 1 kB each, and can't be switched off. Requests have time-outs of ours."""

    def __init__(self, app: App, timeout: float) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


cast(Any, traffic).TimeoutMiddleware = Untimed
gate = Gate()
app = create(gate)


@bentoml.asgi_app(app, path="/")
@bentoml.service(
    name="xlt-serve",
    workers=int(os.environ.get("XLT_WORKERS") or 1),
    # Theirs would count every path that anybody asks for; /metrics is ours.
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
    **tracing.settings(),
)
class XltService:
    """Cross-lingual text classification."""

    def __is_ready__(self) -> bool:
        return bool(app.state.service.ready)

    def __is_alive__(self) -> bool:
        service = getattr(app.state, "service", None)
        return service is None or service.scheduler.alive


cast(Any, XltService).add_asgi_middleware(Guard, gate=gate)
