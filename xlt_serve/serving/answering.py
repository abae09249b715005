"""Requests to answers: through the scheduler, in chunks, until done, too late or nobody waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from xlt_serve import modes, wire
from xlt_serve.classifier import NO_TRANSLATOR, Classifier
from xlt_serve.errors import ItemError, UsageError
from xlt_serve.modes.base import Asked, Cost
from xlt_serve.runtime.steps import TranslateRequest
from xlt_serve.serving.admission import BYTES_PER_TOKEN, Limits, Ticket
from xlt_serve.serving.compact_json import as_json
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.registry import Loaded
from xlt_serve.serving.scheduler import RunFailed, Scheduler, Translate
from xlt_serve.serving.turns import SMALL, Steps, by_turns
from xlt_serve.text.tokens import check, too_many_windows
from xlt_serve.translation.items import primary
from xlt_serve.types import Outcome, Prediction, Settings

CHUNK = 32
"""Items that are tokenised together: while the first chunk runs, the next is tokenised."""

CHUNK_TEXT = 50_000
"""Characters that are tokenised together, or one text: so long others may wait for it, whoever asked."""

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
    scheduler: Scheduler, loaded: Loaded, asked: Asked, timeout: float, client: str = ""
) -> AnsweredQuery:
    """Predictions of all items, in order, chunk by chunk, within ``timeout`` seconds."""
    begun = time.perf_counter()
    modes.check_translations(asked)
    classifier, mode = loaded.classifier, modes.of(asked.settings)
    windows = scheduler.limits.windows if asked.settings.long == "windows" else None
    asked = replace(asked, settings=mode.resolved(asked.settings), windows=windows)
    cost = mode.cost(classifier.context, asked.settings)
    chunks = chunks_of(lengths(asked), cost)
    ticket = admitted(scheduler, classifier, asked, cost, len(chunks), timeout, client)
    # A long request must not fill the queue that short ones need too.
    share = scheduler.limits.tokens // 4
    window = asyncio.Semaphore(max(2, share * max(1, len(chunks)) // (ticket.guess + 1)))
    failed: list[RunFailed] = []
    translate = translator(classifier, FOR_TRANSLATING * timeout)

    async def run(part: Asked) -> list[Prediction]:
        steps = classifier.steps(part)
        return await scheduler.predict(ticket, steps, classifier.runners, translate)

    def fail(error: RunFailed) -> Prediction:
        failed.append(error)
        return classifier.context.failed(mode.name, error.code, str(error))

    async def chunk(start: int, end: int) -> list[Prediction]:
        async with window:
            return await predicted(asked, start, end, run, fail)

    try:
        async with asyncio.timeout(timeout):
            if len(chunks) == 1:  # most requests; tasks would cost them a tenth of a millisecond
                found = [await predicted(asked, *chunks[0], run, fail)]
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


def admitted(
    scheduler: Scheduler,
    classifier: Classifier,
    asked: Asked,
    cost: Cost,
    chunks: int,
    timeout: float,
    client: str,
) -> Ticket:
    """A ticket by what the request will run, guessed from its bytes; else it is refused."""
    settings, limits = asked.settings, scheduler.limits
    demand = demand_of(asked, cost, read_at_once(classifier, settings), max(1, chunks))
    refuse_too_much(demand, cost, settings, limits)
    return scheduler.admit(
        demand.bytes,
        timeout,
        generators=max(1, chunks),
        rows=demand.rows,
        items=len(asked.items),
        most=asked.windows,
        elsewhere=to_translate(classifier, asked),
        small=cost.light and few_probabilities(classifier.context.labels, len(asked.items)),
        client=client,
        text=demand.text,
        drawn=limits.drawn_tokens if cost.draws > 1 else None,
        retokenised=cost.again > 0,
    )


def few_probabilities(labels: Sequence[object], items: int) -> bool:
    """So that to write them down takes the event loop no longer than to look at the texts."""
    return len(labels) * items <= PROBABILITIES


def to_translate(classifier: Classifier, asked: Asked) -> bool:
    """Whether translators may have to do with it: not where the client has all translations, or says
    that its texts are in the source language."""
    if not modes.of(asked.settings).translates or classifier.translators is None:
        return False
    if asked.translations is not None and all(each is not None for each in asked.translations):
        return False
    told, source = asked.settings.language, classifier.bundle.manifest.source_language
    spoken = (told,) if isinstance(told, str) else tuple(told or ())
    return not spoken or any(primary(language) != source for language in spoken)


async def predicted(
    asked: Asked,
    start: int,
    end: int,
    run: Callable[[Asked], Awaitable[list[Prediction]]],
    fail: Callable[[RunFailed], Prediction],
) -> list[Prediction]:
    """Of these items; one that can't be run fails alone, the others run without it. (A closure that
    calls itself would keep its request, and the bundle, until the next garbage collection.)"""
    try:
        return await run(asked.part(start, end))
    except RunFailed as error:
        if end - start == 1:
            return [fail(error)]
    middle = (start + end) // 2
    first = await predicted(asked, start, middle, run, fail)
    return [*first, *await predicted(asked, middle, end, run, fail)]


def translator(classifier: Classifier, seconds: float) -> Translate:
    async def translate(request: TranslateRequest) -> list[Outcome]:
        if classifier.translators is None:
            return [NO_TRANSLATOR] * len(request.texts)
        return await classifier.translators.translate_async(
            request.texts, request.languages, request.target, seconds
        )

    return translate


def lengths(asked: Asked) -> list[int]:
    """Characters of each item, its translation included."""
    given = asked.translations or [None] * len(asked.items)
    return [sum(map(len, _texts(i) + _texts(t))) for i, t in zip(asked.items, given, strict=True)]


def chunks_of(sizes: Sequence[int], cost: Cost) -> list[tuple[int, int]]:
    """(start, end) of each; the more passes an item has, the fewer items. Items that share work stay
    together."""
    if not sizes or cost.shared:
        return [(0, len(sizes))] if sizes else []
    width = max(1, 8 * CHUNK // max(8, cost.passes))
    starts, held = [0], 0
    for number, size in enumerate(sizes):
        if number > starts[-1] and (number == starts[-1] + width or held + size > CHUNK_TEXT):
            starts.append(number)
            held = 0
        held += size
    return list(pairwise([*starts, len(sizes)]))


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


def refuse_many_pairs(texts: int, labels: int, most: int) -> None:
    """Of a zero-shot request, where each text meets each label."""
    if texts * labels > most:
        raise Refusal(
            413,
            "too_many_pairs",
            f"{texts} texts × {labels} labels",
            f"a request may have {most} pairs of a text and a label",
            "split the list into several requests, or leave out labels",
        )


def refuse_large_answer(
    items: Sequence[object], sizes: Sequence[int], top_k: int | None, most: int, pair: bool = False
) -> None:
    """Each item's answer names labels, of these ``least_sizes``: what is sure to be too large once it is
    written. The answer to an item that is none names no label."""
    labels = len(sizes) - 1
    each = sizes[labels if top_k is None else min(top_k, labels)]
    if len(items) * each <= most:  # nearly always: the items are not looked at
        return
    if each * sum(_is_item(item, pair) for item in items) > most:
        raise Refusal(
            413,
            "answer_too_large",
            f"{len(items)} items × {labels} labels",
            f"an answer may have {most} bytes",
            "ask for the likeliest labels alone (top_k), or split the list",
        )


def _is_item(item: object, pair: bool) -> bool:
    try:
        check(item, pair)
    except ItemError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a request will run, guessed from its bytes. ``text``: all of them, also those that are
    tokenised and then cut off."""

    bytes: int
    rows: int
    text: int = 0


def read_at_once(classifier: Classifier, settings: Settings) -> int:
    """Bytes of a text that are read, or that stand in a window, more or less."""
    longest = classifier.encoder.max_length
    return BYTES_PER_TOKEN * min(settings.max_length or longest, longest)


def demand_of(asked: Asked, cost: Cost, most: int, chunks: int = 1) -> Estimate:
    """Of each item at most ``most`` bytes are read, or all of them, in windows of so many. Of an item and
    its translation the longer counts."""
    sizes = [size_of(item) for item in asked.items]
    besides = max(chunks, min(chunks * cost.kinds, len(sizes)))  # a text meets one of the kinds
    text = sum(sizes) + besides * cost.beside
    if cost.again:
        sides = (size_of(side) for item in asked.items for side in _texts(item))
        text += cost.passes * sum(min(size, cost.again) for size in sides)
    if asked.translations is not None:
        given = [size_of(item) for item in asked.translations]
        sizes = [max(pair) for pair in zip(sizes, given, strict=True)]
        text += sum(given)
    if asked.settings.long == "windows":
        rows = [windows_of(item, most) for item in asked.items]
        read = sum(max(size, (n - 1) * most) for size, n in zip(sizes, rows, strict=True))
        return Estimate(read, sum(rows), text)
    read = cost.passes * sum(min(size + cost.more, most) for size in sizes)
    if cost.shared:
        read += chunks * min(cost.beside, cost.shared * most)
    return Estimate(read, cost.passes * len(sizes) + chunks * cost.shared, text)


def windows_of(item: object, most: int) -> int:
    """How many of so many bytes; of a pair the shorter side stands in each, cut to half of it. A token has
    three bytes or four, and a window repeats a quarter of the last, so new bytes are as many."""
    *shorter, longest = sorted(map(size_of, _texts(item))) or [0]
    return 1 + longest // max(1, most - min(sum(shorter), most // 2))


def size_of(item: object) -> int:
    """Bytes of text; what is no text costs nothing."""
    return sum(len(part.encode("utf-8", "replace")) for part in _texts(item))


def _texts(item: object) -> list[str]:
    parts = item if isinstance(item, list | tuple) else (item,)
    return [part for part in parts if isinstance(part, str)]


GUESS = 5
"""A token has three bytes, or fifteen in Thai: by so much may windows be fewer than guessed."""


def refuse_too_much(demand: Estimate, cost: Cost, settings: Settings, limits: Limits) -> None:
    """A request that would run longer than anybody may ask for, even if nobody else did."""
    drawn = demand.bytes // BYTES_PER_TOKEN // cost.passes * cost.draws
    if cost.draws > 1 and drawn > limits.drawn_tokens:
        raise Refusal(
            413,
            "too_many_draws",
            f"{cost.draws} draws of {drawn // cost.draws} tokens",
            f"a request may draw {limits.drawn_tokens} tokens",
            "ask for fewer samples, or split the list into several requests",
        )
    if settings.long == "windows" and demand.rows > GUESS * limits.windows:  # else it is counted
        raise too_many_windows(demand.rows, limits.windows)


PIECE = 64 * 1024
"""Bytes of an answer that are written before the event loop may look at others."""


PROBABILITIES = 5000
"""That are written on the event loop at once: some milliseconds."""


async def body(
    reply: AnsweredQuery,
    loaded: Loaded,
    largest: int,
    hold: Callable[[int], None] = lambda size: None,
) -> bytes:
    """The answer as JSON, written piece by piece; ``hold`` is told how much there is by now."""
    written: bytes = await by_turns(
        _written(reply, loaded, largest, hold), few_probabilities(loaded.label_sizes, 1)
    )
    return written


def _written(
    reply: AnsweredQuery, loaded: Loaded, largest: int, hold: Callable[[int], None]
) -> Steps:
    """The first step is a small one: most answers need no other."""
    version = loaded.classifier.bundle.manifest.version
    parts: list[bytes] = []
    size, pause = 0, SMALL
    for prediction in reply.predictions:
        parts.append(as_json(prediction.to_dict()))
        size += len(parts[-1]) + 1
        if size > largest:
            raise Refusal(
                413,
                "answer_too_large",
                f"{len(reply.predictions)} items",
                f"an answer may have {largest} bytes",
                "ask for the likeliest labels alone (top_k), or split the list",
            )
        if size > pause:
            pause = size + PIECE
            hold(size)
            yield
    rest = {
        "bundle": {"name": loaded.name, "version": version},
        "timings": {
            "queue_ms": round(1000 * (reply.ticket.waited or 0.0), 3),
            "run_ms": round(1000 * reply.ticket.ran, 3),
            "predict_ms": round(1000 * reply.seconds, 3),
        },
    }
    hold(size)
    return b'{"predictions":[' + b",".join(parts) + b"]," + as_json(rest)[1:]
