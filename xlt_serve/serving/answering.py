"""Requests to answers: through the scheduler, in chunks, until done, too late or nobody waits."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from xlt_serve import wire
from xlt_serve.errors import UsageError
from xlt_serve.modes import paired
from xlt_serve.runtime.steps import Steps
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.registry import Loaded
from xlt_serve.serving.scheduler import RunFailed, Scheduler, Ticket
from xlt_serve.smoothing import certify
from xlt_serve.translation import items as renderings
from xlt_serve.types import Failure, Prediction, Settings

CHUNK = 32
"""Items that are tokenised together: while the first chunk runs, the next is tokenised."""


FOR_TRANSLATING = 0.7
"""Share of a request's time that translating may take: what is late is predicted without it."""

Chunks: TypeAlias = Callable[[int, int], Awaitable[Steps[list[Prediction]]]]
"""(start, end) → the steps of these items."""


class TooLate(Exception):
    """The answer was not ready in time."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a request. ``times``: how often each text runs; ``whole``: not in chunks, since each would
    repeat what they share; ``elsewhere``: others have work with it first, as translators do;
    ``simple``: its texts are all that is tokenised."""

    times: int = 1
    whole: bool = False
    elsewhere: bool = False
    simple: bool = False


ONCE = Cost()


@dataclass(frozen=True, slots=True)
class Answered:
    """``failed``: why items could not be run, for the log."""

    predictions: list[Prediction]
    ticket: Ticket
    seconds: float
    failed: Sequence[RunFailed] = ()


async def answer(
    scheduler: Scheduler,
    loaded: Loaded,
    items: Sequence[object],
    steps: Chunks,
    timeout: float,
    cost: Cost = ONCE,
) -> Answered:
    """Predictions of all items, in order, by the steps of each chunk of them."""
    begun = time.perf_counter()
    times = cost.times
    width = max(1, 8 * CHUNK // max(8, times))  # many labels: fewer texts
    if cost.whole:
        width = max(1, len(items))
    chunks = [(start, min(start + width, len(items))) for start in range(0, len(items), width)]
    size, count = times * size_of(items), max(1, len(chunks))
    ticket = scheduler.admit(size, timeout, count, times * len(items), cost.elsewhere, cost.simple)
    # A long request must not fill the queue that short ones need too.
    share = scheduler.limits.tokens // 4
    window = asyncio.Semaphore(max(2, share * count // (ticket.guess + 1)))
    failed: list[RunFailed] = []

    async def predicted(start: int, end: int) -> list[Prediction]:
        """Of these items; one that can't be run fails alone, the others run without it."""
        try:
            with scheduler.elsewhere(ticket):
                made = await steps(start, end)
            return await scheduler.predict(ticket, made, loaded.classifier.runners)
        except RunFailed as error:
            if end - start == 1:
                failed.append(error)
                return [Prediction(None, error=Failure(error.code, str(error)))]
            middle = (start + end) // 2
            return [*await predicted(start, middle), *await predicted(middle, end)]

    async def chunk(start: int, end: int) -> list[Prediction]:
        async with window:
            return await predicted(start, end)

    try:
        async with asyncio.timeout(timeout):
            if len(chunks) == 1:  # most requests; tasks would cost them a tenth of a millisecond
                found = [await predicted(*chunks[0])]
            else:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(chunk(start, end)) for start, end in chunks]
                found = [task.result() for task in tasks]
    except TimeoutError:
        raise TooLate from None
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from several.exceptions[0].__cause__
    finally:
        scheduler.leave(ticket)
    predictions = [prediction for chunk_ in found for prediction in chunk_]
    return Answered(predictions, ticket, time.perf_counter() - begun, failed)


def classify(
    loaded: Loaded,
    items: Sequence[object],
    settings: Settings,
    timeout: float,
    pairing: Sequence[str] = (),
) -> Chunks:
    """The steps of a chunk, once it is translated, where its mode wants that: while one is, another
    runs. Votes of all chunks have one seed, as if they were one. ``pairing``: the bundles that can
    pair, to name to a client who asked another."""
    if settings.mode == "paired":
        paired.refuse_unfit(loaded.classifier.bundle, pairing)
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


def cost_of(settings: Settings) -> Cost:
    """At least."""
    if settings.mode == "smoothed":
        # Label and bound share alpha.
        fewest = certify.fewest_votes(settings.smoothing.alpha / 2)
        return Cost(min(settings.smoothing.samples, fewest))
    if settings.mode == "plain":
        return Cost(simple=True)
    return Cost(2 if settings.mode == "paired" else 1, elsewhere=True)


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
    """Bytes of text; what is no text costs nothing."""
    return sum(
        len(part.encode("utf-8", "replace"))
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
