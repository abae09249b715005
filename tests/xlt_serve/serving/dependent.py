"""A BentoML service that calls ours in three ways, for the tests."""

from __future__ import annotations

import os
from typing import Any

import bentoml

from xlt_serve.service import XltService

URL = os.environ.get("TEST_URL", "http://127.0.0.1:9")


@bentoml.service
class Dependent:
    typed = bentoml.depends(url=URL, on=XltService)
    untyped = bentoml.depends(url=URL)
    beside = bentoml.depends(XltService)

    def __init__(self) -> None:
        for proxy in (self.typed, self.untyped):
            proxy.to_async.default_headers["X-API-Key"] = os.environ["TEST_KEY"]

    @bentoml.api
    async def over(
        self, way: str, asked: dict[str, Any], method: str = "classify"
    ) -> dict[str, Any]:
        called = self.untyped.to_async if way == "untyped" else getattr(self, way)
        return dict(await getattr(called, method)(**asked))

    @bentoml.api
    def blocking(self, way: str, asked: dict[str, Any]) -> dict[str, Any]:
        return dict(getattr(self, way).to_sync.classify(**asked))


@bentoml.service
class Alone:
    """As in development: ours is in the same process."""

    beside = bentoml.depends(XltService)

    @bentoml.api
    async def over(self, asked: dict[str, Any], method: str = "classify") -> dict[str, Any]:
        return dict(await getattr(self.beside, method)(**asked))
