"""The BentoML service: processes, probes and metrics are BentoML's, the routes are ``http.app``'s."""

from __future__ import annotations

import os
from typing import Any, cast

import bentoml

from xlt_serve.http import tracing
from xlt_serve.http.app import create
from xlt_serve.http.guard import Gate, Guard

gate = Gate()
app = create(gate)


@bentoml.asgi_app(app, path="/")
@bentoml.service(
    name="xlt-serve",
    workers=int(os.environ.get("XLT_WORKERS") or 1),
    traffic={"timeout": 3600},  # ours is shorter, and has the one shape of errors
    logging={"access": {"enabled": False}},
    **tracing.settings(),
)
class XltService:
    """Cross-lingual text classification."""

    def __is_ready__(self) -> bool:
        return bool(app.state.service.ready)


cast(Any, XltService).add_asgi_middleware(Guard, gate=gate)
