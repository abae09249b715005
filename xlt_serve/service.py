"""The BentoML service: HTTP around ``pipeline``, with no logic of its own."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Annotated, Any, cast

import bentoml
from pydantic import Field
from starlette.responses import JSONResponse

from xlt_serve.errors import UsageError
from xlt_serve.pipeline import Classifier, load
from xlt_serve.schema import Prediction, Smoothing
from xlt_serve.synonyms import files

# Items are of any type here: a wrong one gets its own error and does not sink its neighbours.
Texts = Annotated[
    list[Any] | str | None,
    Field(description="texts to classify, or one", examples=[["El partido terminó en empate."]]),
]
Pairs = Annotated[
    list[Any] | None,
    Field(description="pairs of texts, for bundles that take pairs", examples=[[["a", "b"]]]),
]
Language = Annotated[
    str | None, Field(description="language of the texts, instead of detecting it")
]
Long = Annotated[str, Field(description="texts over the limit: truncate, windows or error")]
Mode = Annotated[str, Field(description="plain or smoothed")]
Samples = Annotated[int, Field(description="smoothed: most draws of a text")]
Alpha = Annotated[float, Field(description="smoothed: how often an answer may be wrong")]
Radius = Annotated[float | None, Field(description="smoothed: to certify, in the noise's norm")]
Noise = Annotated[
    str | None, Field(description="smoothed: gaussian, uniform or synonym, else as trained")
]
Scale = Annotated[float | None, Field(description="smoothed: σ or half-width, else as trained")]
Seed = Annotated[int | None, Field(description="smoothed: of the draws, else a new one")]
Words = Annotated[int | None, Field(description="smoothed by synonyms: words to certify")]
Synonyms = Annotated[str | None, Field(description="how they are drawn: groups or neighbours")]


@bentoml.service(name="xlt-serve", traffic={"timeout": 60})
class XltService:
    """Cross-lingual text classification."""

    def __init__(self) -> None:
        self.classifier: Classifier = load(
            os.environ.get("XLT_BUNDLE") or None,
            provider=os.environ.get("XLT_PROVIDER") or "cpu",
            synonyms=files(filter(None, os.environ.get("XLT_SYNONYMS", "").split(os.pathsep))),
        )
        self.classifier.predict([("a", "b") if self.classifier.bundle.manifest.pair else "a"])
        # One run at a time uses all cores; a second one beside it would only slow both.
        self.turn = asyncio.Semaphore(1)

    @bentoml.api(route="/classify")
    async def classify(
        self,
        texts: Texts = None,
        pairs: Pairs = None,
        mode: Mode = "plain",
        language: Language = None,
        long: Long = "truncate",
        max_length: int | None = None,
        abstain_below: float | None = None,
        top_k: int | None = None,
        samples: Samples = 100,
        alpha: Alpha = 0.001,
        radius: Radius = None,
        noise: Noise = None,
        scale: Scale = None,
        seed: Seed = None,
        words: Words = None,
        synonyms: Synonyms = None,
    ) -> dict[str, Any]:
        """One prediction for each text or pair, in order."""
        begun = time.perf_counter()
        try:
            items = _items(texts, pairs)
            # Shielded: a client that leaves must not let the next run start beside this one.
            started, predictions = await asyncio.shield(
                self._run(
                    items,
                    mode=mode,
                    smoothing=Smoothing(
                        samples, alpha, radius, noise, scale, seed, words, synonyms
                    ),
                    long=long,
                    language=language,
                    max_length=max_length,
                    abstain_below=abstain_below,
                    top_k=top_k,
                )
            )
        except UsageError as error:
            return cast(dict[str, Any], refused(error))
        ended = time.perf_counter()
        manifest = self.classifier.bundle.manifest
        return {
            "predictions": [prediction.to_dict() for prediction in predictions],
            "bundle": {"name": manifest.name, "version": manifest.version},
            "timings": {
                "queue_ms": round(1000 * (started - begun), 3),
                "predict_ms": round(1000 * (ended - started), 3),
            },
        }

    async def _run(self, items: list[Any], **options: Any) -> tuple[float, list[Prediction]]:
        async with self.turn:
            started = time.perf_counter()
            return started, await asyncio.to_thread(self.classifier.predict, items, **options)


def _items(texts: list[Any] | str | None, pairs: list[Any] | None) -> list[Any]:
    if (texts is None) == (pairs is None):
        raise UsageError(
            "neither texts nor pairs" if texts is None else "both texts and pairs",
            "a request has one of them",
            'send {"texts": ["…"]} or {"pairs": [["…", "…"]]}',
        )
    if isinstance(texts, str):
        return [texts]
    return list(texts if texts is not None else pairs or [])


def refused(error: UsageError) -> JSONResponse:
    """BentoML passes a response on as it is, which keeps one shape for all errors."""
    body = {"error": {"code": error.code, "message": str(error)}}
    return JSONResponse(body, status_code=422)
