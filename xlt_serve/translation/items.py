"""The translations of a request's items: the client's own, the item itself, or an engine's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from xlt_serve.bundle import Manifest
from xlt_serve.errors import ItemError, UsageError
from xlt_serve.runtime.steps import Steps, TranslateRequest
from xlt_serve.text.language import detect
from xlt_serve.text.tokens import check
from xlt_serve.types import Item, Outcome, Translation, Untranslated

SAME, CLIENT = "same", "client"


@dataclass(frozen=True, slots=True)
class TranslatedItem:
    """An item in the source language; ``translator`` is an engine's name, ``client``, or ``same`` for
    an item that is in that language already. ``quality`` is the engine's own hint, if it gives one."""

    item: Item
    translator: str
    quality: float | None = None


class Items(Protocol):
    """The items of a request, as ``modes.base.Reading`` has them."""

    valid: dict[int, Item]

    def fail(self, index: int, error: ItemError) -> None: ...

    def language(self, index: int) -> str | Sequence[str] | None: ...


def translated(
    items: Items,
    given: Sequence[object] | None,
    told: str | Sequence[str] | None,
    manifest: Manifest,
    meanwhile: Callable[[], object],
) -> Steps[dict[int, TranslatedItem | Untranslated]]:
    """By number, for each valid item: its translation into the source language, or why it has none.

    ``given``: the client's own; one that is no text fails its item. ``told``: the language that the
    request names. Texts already in the source language are not sent to an engine.
    """
    found: dict[int, TranslatedItem | Untranslated] = {}
    open_items: list[tuple[int, Item, list[str | None]]] = []
    for index, item in items.valid.items():
        entry = given[index] if given is not None else None
        if entry is None:
            open_items.append((index, item, languages(items, index, told)))
            continue
        try:
            found[index] = TranslatedItem(check(entry, manifest.pair), CLIENT)
        except ItemError as error:
            rule = f"as a translation: {error.rule}"
            items.fail(index, ItemError("translation", error.value, rule, error.remedy))
    source = manifest.source_language
    wanted = [
        (text, language)
        for _, item, spoken in open_items
        for text, language in zip(sides(item), spoken, strict=True)
        if language != source
    ]
    outcomes: Iterator[Outcome] = iter(())
    if wanted:
        texts, spoken_in = zip(*wanted, strict=True)
        outcomes = iter((yield TranslateRequest(texts, spoken_in, source, meanwhile)))
    for index, item, spoken in open_items:
        parts = [
            Translation(text, SAME) if language == source else next(outcomes)
            for text, language in zip(sides(item), spoken, strict=True)
        ]
        found[index] = whole(parts)
    return found


def one_each(given: Sequence[object] | None, items: int) -> None:
    """Refuse translations that are not one for each item."""
    if isinstance(given, str):
        raise UsageError("translations", "must be a list, one for each item")
    if given is not None and len(given) != items:
        raise UsageError(
            f"{len(given)} translations",
            f"there must be one for each of the {items} items",
            "give null where there is none",
        )


def whole(parts: Sequence[Outcome]) -> TranslatedItem | Untranslated:
    """One side or two: all must have been translated; the worst quality counts."""
    for part in parts:
        if isinstance(part, Untranslated):
            return part
    done = [part for part in parts if isinstance(part, Translation)]
    texts = [part.text for part in done]
    engines = list(dict.fromkeys(part.engine for part in done))
    if len(engines) > 1:
        engines = [engine for engine in engines if engine != SAME]
    hints = [part.quality for part in done if part.quality is not None]
    item: Item = texts[0] if len(texts) == 1 else (texts[0], texts[1])
    return TranslatedItem(item, "+".join(engines), min(hints) if hints else None)


def languages(items: Items, index: int, told: str | Sequence[str] | None) -> list[str | None]:
    """The language of each side: what the request says, else what the side itself looks like."""
    texts = sides(items.valid[index])
    if isinstance(told, str):
        return [primary(told)] * len(texts)
    if told is not None and len(told) == len(texts):
        return [primary(language) for language in told]
    if told is None and len(texts) == 1:  # the answer names it too: look once
        found = items.language(index)
        return [found if isinstance(found, str) else None]
    return [detect(text).language for text in texts]


def primary(tag: str) -> str:
    """``pt`` of ``pt-BR`` or ``PT_br``: engines and bundles know languages, not regions."""
    return re.split("[-_]", tag.lower(), maxsplit=1)[0]


def sides(item: Item) -> tuple[str, ...]:
    return item if isinstance(item, tuple) else (item,)
