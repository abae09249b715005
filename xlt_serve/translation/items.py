"""Items in the source language: as the client gave them, as they are, or as an engine translates them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from xlt_serve.errors import ItemError, UsageError
from xlt_serve.text.language import detect
from xlt_serve.text.tokens import check
from xlt_serve.translation import Translators, ahead
from xlt_serve.translation.protocol import Outcome, Translation, Untranslated
from xlt_serve.types import Item, Rendering, Settings, Unrendered

MODES = ("paired", "translate")
SAME, CLIENT = "same", "client"
UNREADABLE = Unrendered("nonsense", "the tokenizer finds nothing in the translation")


@dataclass(frozen=True, slots=True)
class Order:
    """What has to be translated: ``texts`` in their ``languages``, and how their outcomes make
    ``settings`` whole."""

    texts: list[str]
    languages: list[str | None]
    finish: Callable[[Sequence[Outcome]], Settings]


def order(items: Sequence[object], settings: Settings, source: str, pair: bool) -> Order | None:
    """The texts of ``items`` that still need a translation into ``source``; None if none do.

    An item that can't be classified is left as it is: it gets its own error later, and no engine
    has to bear it.
    """
    if settings.mode not in MODES:
        return None
    entries = given(items, settings)
    slots: list[tuple[int, Item, list[str | None]]] = []
    for index, (item, entry) in enumerate(zip(items, entries, strict=True)):
        if entry is not None:
            continue
        try:
            checked = check(item, pair)
        except ItemError:
            continue
        slots.append((index, checked, languages(checked, settings.language)))
    texts, spoken = [], []
    for _, item, each in slots:
        for text, language in zip(sides(item), each, strict=True):
            if language != source:
                texts.append(text)
                spoken.append(language)

    def finish(outcomes: Sequence[Outcome]) -> Settings:
        rest: Iterator[Outcome] = iter(outcomes)
        whole = list(entries)
        for index, item, each in slots:
            parts: list[Outcome] = [
                Translation(text, SAME) if language == source else next(rest)
                for text, language in zip(sides(item), each, strict=True)
            ]
            whole[index] = rendering(parts)
        return replace(settings, translations=whole)

    return Order(texts, spoken, finish) if slots else None


def given(items: Sequence[object], settings: Settings) -> list[object]:
    """The request's translations, one for each item."""
    if settings.translations is None:
        return [None] * len(items)
    if len(settings.translations) != len(items):
        raise UsageError(
            f"{len(settings.translations)} translations",
            f"there must be one for each of the {len(items)} items",
            "give null where there is none",
        )
    return list(settings.translations)


def sides(item: Item) -> tuple[str, ...]:
    return item if isinstance(item, tuple) else (item,)


def rendering(parts: Sequence[Outcome]) -> Rendering | Unrendered:
    """One side or two: all must have been translated; the worst quality counts."""
    for part in parts:
        if isinstance(part, Untranslated):
            return Unrendered(part.code, part.message)
    done = [part for part in parts if isinstance(part, Translation)]
    texts = [part.text for part in done]
    engines = list(dict.fromkeys(part.engine for part in done))
    if len(engines) > 1:
        engines = [engine for engine in engines if engine != SAME]
    hints = [part.quality for part in done if part.quality is not None]
    item: Item = texts[0] if len(texts) == 1 else (texts[0], texts[1])
    return Rendering(item, "+".join(engines), min(hints) if hints else None)


def primary(tag: str) -> str:
    """``pt`` of ``pt-BR`` or ``PT_br``: engines and bundles know languages, not regions."""
    return re.split("[-_]", tag.lower(), maxsplit=1)[0]


def languages(item: Item, told: object) -> list[str | None]:
    """The language of each side: what the client says, else what the side itself looks like."""
    texts = sides(item)
    if isinstance(told, str):
        return [primary(told)] * len(texts)
    if isinstance(told, list | tuple) and len(told) == len(texts):
        return [primary(str(language)) for language in told]
    return [detect(text).language for text in texts]


def rendered(entry: object, pair: bool) -> Rendering | Unrendered:
    """An entry of ``translations`` as a value; an ItemError where the client's is none."""
    if isinstance(entry, Rendering | Unrendered):
        return entry
    try:
        return Rendering(check(entry, pair), CLIENT)
    except ItemError as error:
        raise ItemError(
            "translation", error.value, f"as a translation: {error.rule}", error.remedy
        ) from None


class Renderer:
    """Items of requests into ``source``, by ``translators`` if there are any.

    Settings in, settings out, with a translation or the reason why there is none for each item;
    those of modes that use no translation come back as they are.
    """

    def __init__(self, source: str, pair: bool, translators: Translators | None = None) -> None:
        self.source, self.pair, self.translators = source, pair, translators

    def under_way(
        self, items: Sequence[object], settings: Settings, hurry: bool = False
    ) -> Future[Settings]:
        """The engines work while the caller does something else; in a ``hurry`` within the deadline of
        a request."""
        needed = order(items, settings, self.source, self.pair)
        if needed is None or self.translators is None:
            done: Future[Settings] = Future()
            done.set_result(settings)
            return done
        deadline = self.translators.deadline if hurry else None
        outcomes = self.translators.submit(needed.texts, needed.languages, self.source, deadline)
        return pending(needed, outcomes)

    async def translated_async(
        self, items: Sequence[object], settings: Settings, seconds: float | None = None
    ) -> Settings:
        """With its translations, for event loops, within ``seconds``; a caller that is cancelled cancels the
        translating."""
        needed = order(items, settings, self.source, self.pair)
        if needed is None or self.translators is None:
            return settings
        return needed.finish(
            await self.translators.translate_async(
                needed.texts, needed.languages, self.source, seconds
            )
        )

    def ahead(
        self, batches: Iterable[Sequence[object]], settings: Settings, depth: int = 1
    ) -> Iterator[tuple[Sequence[object], Settings]]:
        """Each batch with its own settings; the next is translated while the caller runs this one.

        Without a deadline: a file is in no hurry, and the engines' own time-outs hold.
        """
        if settings.mode not in MODES:
            depth = 0  # nothing to wait for: the next batch is not even read yet
        return ahead(batches, lambda batch: self.under_way(batch, settings), depth)

    def as_it_is(self, items: Sequence[object], settings: Settings) -> Settings:
        """Without translators: texts in the source language have their pair, the others a reason."""
        needed = order(items, settings, self.source, self.pair)
        if needed is None:
            return settings
        missing = Untranslated(
            "no_translator", "no translators are configured and the request has no translation"
        )
        return needed.finish([missing] * len(needed.texts))


def pending(needed: Order, outcomes: Future[list[Outcome]]) -> Future[Settings]:
    """The settings, once the outcomes are there."""
    out: Future[Settings] = Future()

    def done(future: Future[list[Outcome]]) -> None:
        if future.cancelled():
            out.cancel()
            return
        try:
            made = needed.finish(future.result())
        except BaseException as error:  # or whoever waits would wait for ever
            if not out.cancelled():
                out.set_exception(error)
            return
        if not out.cancelled():
            out.set_result(made)

    outcomes.add_done_callback(done)
    out.add_done_callback(lambda future: outcomes.cancel() if future.cancelled() else None)
    return out
