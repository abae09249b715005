"""The BentoML service: processes, probes and schema are BentoML's, the routes are ``serving.app``'s."""

from __future__ import annotations

import os
from typing import Any, cast

import bentoml

from xlt_serve.serving import tracing
from xlt_serve.serving.app import create
from xlt_serve.serving.bento_methods import Answer, InProcess, arguments
from xlt_serve.serving.bento_service import RoutedService
from xlt_serve.serving.middleware import Gate, Guard

gate = Gate()
app = create(gate)


@bentoml.asgi_app(app, path="/")
@bentoml.service(
    name="xlt-serve",
    service_class=RoutedService,
    workers=int(os.environ.get("XLT_WORKERS") or 1),
    # BentoML's proxies in other services wait so long for an answer.
    traffic={"timeout": float(os.environ.get("XLT_TIMEOUT") or 60)},
    # Theirs would count every path that anybody asks for; /metrics is ours.
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
    **tracing.settings(),
)
class XltService:
    """Cross-lingual text classification."""

    def __init__(self) -> None:
        self._here = InProcess(app, gate)

    @bentoml.api(route="/classify", input_spec=arguments("classify"))
    async def classify(self, texts: Any = None, **options: Any) -> Answer:
        """Classify texts, or pairs of texts."""
        return await self._here.call("/classify", texts=texts, **options)

    @bentoml.api(route="/zero_shot", input_spec=arguments("zero_shot"))
    async def zero_shot(self, texts: Any, labels: Any, **options: Any) -> Answer:
        """Give texts one of any labels, or several."""
        return await self._here.call("/zero_shot", texts=texts, labels=labels, **options)

    @bentoml.api(route="/models", input_spec=arguments("swap"))
    async def swap(self, name: str, bundle: str | None = None, force: bool = False) -> Answer:
        """Load a bundle anew while requests go on; needs an admin key."""
        return await self._here.call("/models", name=name, bundle=bundle, force=force)

    @bentoml.api(route="/models/unload", input_spec=arguments("unload"))
    async def unload(self, name: str) -> Answer:
        """Unload a bundle while requests go on; needs an admin key."""
        return await self._here.call("/models/unload", name=name)

    async def close(self) -> None:
        """BentoML calls this at the end of a process that it has the service in, without a server."""
        await self._here.close()

    def __is_ready__(self) -> bool:
        return bool(app.state.service.ready)

    def __is_alive__(self) -> bool:
        service = getattr(app.state, "service", None)
        return service is None or bool(service.scheduler.alive)


cast(Any, XltService).add_asgi_middleware(Guard, gate=gate)
