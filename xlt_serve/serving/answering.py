"""Requests to answers: through the scheduler, in chunks, until done, too late or nobody waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from xlt_serve import modes, wire
from xlt_serve.classifier import NO_TRANSLATOR, Classifier
from xlt_serve.errors import UsageError
from xlt_serve.modes.base import Asked, Cost
from xlt_serve.runtime.steps import TranslateRequest
from xlt_serve.serving.admission import Ticket
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.registry import Loaded
from xlt_serve.serving.scheduler import RunFailed, Scheduler, Translate
from xlt_serve.types import Outcome, Prediction

CHUNK = 32
"""Items that are tokenised together: while the first chunk runs, the next is tokenised."""

FOR_TRANSLATING = 0.7
"""Share of a request's time that translating may take: what is late is predicted without it."""


class TooLate(Exception):
    """The answer was not ready in time."""


@dataclass(frozen=True, slots=True)
class AnsweredQuery:
    """``failed``: why items could not be run, for the log."""

    predictions: list[Prediction]
    ticket: Ticket
    seconds: float
    failed: Sequence[RunFailed] = ()


async def answer(
    scheduler: Scheduler, loaded: Loaded, asked: Asked, timeout: float
) -> AnsweredQuery:
    """Predictions of all items, in order, chunk by chunk, within ``timeout`` seconds."""
    begun = time.perf_counter()
    modes.check_translations(asked)
    classifier, items, mode = loaded.classifier, asked.items, modes.of(asked.settings)
    asked = replace(asked, settings=mode.resolved(asked.settings))
    cost = mode.cost(classifier.context, asked.settings)
    chunks = chunks_of(len(items), cost)
    ticket = scheduler.admit(
        cost.passes * size_of(items),
        timeout,
        generators=max(1, len(chunks)),
        rows=cost.passes * len(items),
        elsewhere=mode.translates,
        small=cost.light,
    )
    # A long request must not fill the queue that short ones need too.
    share = scheduler.limits.tokens // 4
    window = asyncio.Semaphore(max(2, share * max(1, len(chunks)) // (ticket.guess + 1)))
    failed: list[RunFailed] = []
    translate = translator(classifier, FOR_TRANSLATING * timeout)

    async def predicted(start: int, end: int) -> list[Prediction]:
        """Of these items; one that can't be run fails alone, the others run without it."""
        steps = classifier.steps(asked.part(start, end))
        try:
            return await scheduler.predict(ticket, steps, classifier.runners, translate)
        except RunFailed as error:
            if end - start == 1:
                failed.append(error)
                return [classifier.context.failed(mode.name, error.code, str(error))]
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
    return AnsweredQuery(predictions, ticket, time.perf_counter() - begun, failed)


def translator(classifier: Classifier, seconds: float) -> Translate:
    async def translate(request: TranslateRequest) -> list[Outcome]:
        if classifier.translators is None:
            return [NO_TRANSLATOR] * len(request.texts)
        return await classifier.translators.translate_async(
            request.texts, request.languages, request.target, seconds
        )

    return translate


def chunks_of(items: int, cost: Cost) -> list[tuple[int, int]]:
    """(start, end) of each; the more passes an item has, the fewer items. Items that share work stay
    together."""
    width = max(1, items) if cost.shared else max(1, 8 * CHUNK // max(8, cost.passes))
    return [(start, min(start + width, items)) for start in range(0, items, width)]


def items_of(request: wire.ClassifyBody, most: int) -> list[Any]:
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


def body(reply: AnsweredQuery, loaded: Loaded) -> dict[str, Any]:
    manifest = loaded.classifier.bundle.manifest
    return {
        "predictions": [prediction.to_dict() for prediction in reply.predictions],
        "bundle": {"name": manifest.name, "version": manifest.version},
        "timings": {
            "queue_ms": round(1000 * (reply.ticket.waited or 0.0), 3),
            "run_ms": round(1000 * reply.ticket.ran, 3),
            "predict_ms": round(1000 * reply.seconds, 3),
        },
    }
