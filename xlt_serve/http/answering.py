"""Requests to answers: through the scheduler, in chunks, until done, too late or nobody waits."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from xlt_serve import renderings, wire
from xlt_serve.errors import UsageError
from xlt_serve.http.failures import Refusal
from xlt_serve.http.registry import Loaded
from xlt_serve.runners import Runners
from xlt_serve.scheduler import Scheduler, Ticket
from xlt_serve.schema import Prediction, Settings
from xlt_serve.steps import Steps

CHUNK = 32
"""Items that are tokenised together: while the first chunk runs, the next is tokenised."""


FOR_TRANSLATING = 0.7
"""Share of a request's time that translating may take: what is late is predicted without it."""

Chunks: TypeAlias = Callable[[int, int], Awaitable[Steps[list[Prediction]]]]
"""(start, end) → the steps of these items."""


@dataclass(frozen=True, slots=True)
class Answered:
    predictions: list[Prediction]
    ticket: Ticket
    seconds: float


async def answer(
    scheduler: Scheduler,
    loaded: Loaded,
    items: Sequence[object],
    steps: Chunks,
    timeout: float,
    times: int = 1,
) -> Answered:
    """Predictions of all items, in order, by the steps of each chunk of them, which run each text so
    many ``times``."""
    begun = time.perf_counter()
    chunks = [(start, start + CHUNK) for start in range(0, len(items), CHUNK)]
    ticket = scheduler.admit(times * size_of(items), timeout, max(1, len(chunks)))
    runners = loaded.classifier.runners
    try:
        async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_chunk(scheduler, ticket, steps(*chunk), runners))
                for chunk in chunks
            ]
    except TimeoutError:
        raise Refusal(
            504, "deadline", f"{timeout:g} s", "the answer was not ready in time", "send less"
        ) from None
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed.exceptions[0].__cause__
    finally:
        scheduler.leave(ticket)
    predictions = [prediction for task in tasks for prediction in task.result()]
    return Answered(predictions, ticket, time.perf_counter() - begun)


async def _chunk(
    scheduler: Scheduler,
    ticket: Ticket,
    steps: Awaitable[Steps[list[Prediction]]],
    runners: Runners,
) -> list[Prediction]:
    return await scheduler.predict(ticket, await steps, runners)


def classify(loaded: Loaded, items: Sequence[object], settings: Settings, timeout: float) -> Chunks:
    """The steps of a chunk, once it is translated, where its mode wants that: while one is, another
    runs. Votes of all chunks have one seed, as if they were one."""
    loaded.classifier.refuse_unfit(settings)
    if settings.mode == "smoothed" and settings.smoothing.seed is None:
        seed = secrets.randbits(48)
        settings = replace(settings, smoothing=replace(settings.smoothing, seed=seed))
    given = renderings.given(items, settings)

    async def steps(start: int, end: int) -> Steps[list[Prediction]]:
        chunk, its = items[start:end], settings
        if settings.mode in renderings.MODES:
            its = await loaded.classifier.renderer.translated_async(
                chunk, replace(settings, translations=given[start:end]), FOR_TRANSLATING * timeout
            )
        return loaded.classifier.steps(chunk, its)

    return steps


def items_of(request: wire.ClassifyRequest, most: int) -> list[Any]:
    texts, pairs = request.texts, request.pairs
    if (texts is None) == (pairs is None):
        raise UsageError(
            "neither texts nor pairs" if texts is None else "both texts and pairs",
            "a request has one of them",
            'send {"texts": ["…"]} or {"pairs": [["…", "…"]]}',
        )
    if pairs is not None and len(pairs) == 2 and all(isinstance(side, str) for side in pairs):
        return [pairs]
    return listed(texts if texts is not None else pairs, most)


def listed(items: list[Any] | str | None, most: int) -> list[Any]:
    out = [items] if isinstance(items, str) else list(items or [])
    if len(out) > most:
        raise Refusal(
            413,
            "too_many_items",
            f"{len(out)} items",
            f"a request may have {most}",
            "split the list into several requests",
        )
    return out


def size_of(items: Sequence[object]) -> int:
    """Characters, more or less; what is no text costs nothing."""
    return sum(
        len(part)
        for item in items
        for part in (item if isinstance(item, list | tuple) else (item,))
        if isinstance(part, str)
    )


def body(answered: Answered, loaded: Loaded) -> dict[str, Any]:
    manifest = loaded.classifier.bundle.manifest
    return {
        "predictions": [prediction.to_dict() for prediction in answered.predictions],
        "bundle": {"name": manifest.name, "version": manifest.version},
        "timings": {
            "queue_ms": round(1000 * (answered.ticket.waited or 0.0), 3),
            "run_ms": round(1000 * answered.ticket.ran, 3),
            "predict_ms": round(1000 * answered.seconds, 3),
        },
    }
