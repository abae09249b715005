"""Which engine translates what: routes by language, fall-backs in order, time-outs, a cache."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from xlt_serve.errors import first_line
from xlt_serve.translation.breaker import Breaker
from xlt_serve.translation.cache import Key, TranslationCache
from xlt_serve.translation.protocol import (
    Outcome,
    PairRefused,
    Translation,
    Translator,
    Untranslated,
    Why,
)
from xlt_serve.translation.recorded import Recorded, RecordedRow, Recorder
from xlt_serve.translation.sanity import Flaw, flaw
from xlt_serve.translation.sentences import head
from xlt_serve.translation.statistics import Event, Kind, Observe, Statistics

DEFAULT = "default"
LONGEST = 2000
"""Characters of a text that are translated: a classifier reads no more."""
LONGEST_NAME = 35
"""Characters of a language's name: no tag of BCP 47 has more. It goes to engines and into messages."""


@dataclass
class Engine:
    """A translator and how it is to be treated. ``timeout`` is for one call of up to ``batch`` texts,
    from its start; ``calls`` are made at once. A translation whose own hint of quality is below
    ``least_quality`` is none."""

    translator: Translator
    timeout: float = 5.0
    batch: int = 32
    calls: int = 1
    least_quality: float = 0.0
    breaker: Breaker = field(default_factory=Breaker)

    def __post_init__(self) -> None:
        self.turns = asyncio.Semaphore(self.calls)

    @property
    def name(self) -> str:
        return self.translator.name


@dataclass
class Router:
    """``routes``: language → names of engines, the first asked first; ``default`` for the others. No
    routes at all: every engine that takes the pair, in their order. Used from one event loop.

    ``judge``: what is wrong with a translation (text, translation, target, source); ``refused`` hears of those
    that were turned down."""

    engines: Mapping[str, Engine]
    routes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cache: TranslationCache = field(default_factory=TranslationCache)
    longest: int = LONGEST
    recorder: Recorder | None = None
    observers: Sequence[Observe] = ()
    judge: Callable[[str, str, str, str], Flaw | None] = flaw
    refused: Callable[[str, Translation, Flaw], None] = lambda text, translation, flaw: None

    def __post_init__(self) -> None:
        self.statistics = Statistics()

    def chain(self, source: str, target: str) -> list[Engine]:
        """The engines for a pair, in order."""
        names = self.routes.get(source, self.routes.get(DEFAULT, []))
        if not self.routes:
            names = list(self.engines)
        chosen = [self.engines[name] for name in names]
        return [engine for engine in chosen if engine.translator.takes(source, target)]

    async def translate(
        self,
        texts: Sequence[str],
        languages: Sequence[str | None],
        target: str,
        seconds: float | None = None,
    ) -> list[Outcome]:
        """One outcome for each text, in order, after at most ``seconds``; never raises for an engine."""
        asked = [head(text, self.longest) for text in texts]
        groups: dict[str, list[str]] = {}
        for text, language in zip(asked, languages, strict=True):
            if _is_name(language):
                groups.setdefault(language, []).append(text)
        found: dict[tuple[str, str], Outcome] = {}
        work = [
            self._group(sorted(set(group)), language, target, found)
            for language, group in groups.items()
        ]
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await _together(work)
        except TimeoutError:
            if not limit.expired():
                raise  # ours, not an engine's
            # What was found by then counts.
        missing = Untranslated("timeout", f"no translation within {seconds} s")
        unknown = Untranslated(
            "language", "the language of the text is not known: give it as language"
        )
        return [
            found.get((language, text), missing) if _is_name(language) else unknown
            for text, language in zip(asked, languages, strict=True)
        ]

    def close(self) -> None:
        for engine in self.engines.values():
            engine.translator.close()
        if self.recorder is not None:
            self.recorder.close()

    async def _group(
        self,
        texts: Sequence[str],
        source: str,
        target: str,
        found: dict[tuple[str, str], Outcome],
    ) -> None:
        """Down the chain with those texts that have no translation yet."""
        chain = self.chain(source, target)
        left = list(texts)
        # Until the end it is not known what becomes of a text: the last problem is kept apart.
        problems: dict[str, Untranslated] = {}
        for engine in chain:
            left = self._from_cache(engine, left, source, target, found)
            # Similar lengths together: an engine's batch costs what its longest text costs.
            left.sort(key=len)
            calls = [left[i : i + engine.batch] for i in range(0, len(left), engine.batch)]
            await _together(
                [self._call(engine, call, source, target, found, problems) for call in calls]
            )
            left = [text for text in left if (source, text) not in found]
            if not left:
                return
        for text in left:
            found[source, text] = problems.get(text) or Untranslated(
                "no_translator", f"no translator from {source} to {target} is configured"
            )

    def _from_cache(
        self,
        engine: Engine,
        texts: list[str],
        source: str,
        target: str,
        found: dict[tuple[str, str], Outcome],
    ) -> list[str]:
        left = []
        for text in texts:
            known = self.cache.get(Key(engine.name, source, target, text))
            if known is None:
                left.append(text)
            else:
                found[source, text] = known
        if len(left) < len(texts):
            self._note(Event(engine.name, source, target, "cached", len(texts) - len(left)))
        return left

    async def _call(
        self,
        engine: Engine,
        texts: Sequence[str],
        source: str,
        target: str,
        found: dict[tuple[str, str], Outcome],
        problems: dict[str, Untranslated],
    ) -> None:
        def gone(code: Why, kind: Kind, message: str, seconds: float = 0.0) -> None:
            self._note(Event(engine.name, source, target, kind, len(texts), seconds))
            for text in texts:
                problems[text] = Untranslated(code, f"{engine.name}: {message}")

        async with engine.turns:
            if not engine.breaker.lets_through():
                gone("resting", "resting", "failed too often of late and is left alone")
                return
            begun = time.monotonic()
            try:
                async with asyncio.timeout(engine.timeout):
                    given = await engine.translator.translate(texts, source, target)
                if len(given) != len(texts):
                    raise ValueError(f"{len(given)} translations of {len(texts)} texts")
                if strange := [one for one in given if not isinstance(one, Translation | None)]:
                    raise TypeError(f"{type(strange[0]).__name__} instead of a translation")
            except TimeoutError:
                engine.breaker.failed()
                message = f"no answer within {engine.timeout} s"
                gone("timeout", "timeout", message, time.monotonic() - begun)
                return
            except PairRefused as error:
                gone("failed", "refused", error.rule, time.monotonic() - begun)
                return
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # the deadline, or a caller that has left
                engine.breaker.failed()
                gone("failed", "failed", "gave up its own work", time.monotonic() - begun)
                return
            except Exception as error:  # whatever a foreign engine raises
                engine.breaker.failed()
                message = first_line(error)
                gone("failed", "failed", message, time.monotonic() - begun)
                return
            engine.breaker.worked()
        seconds = time.monotonic() - begun
        kinds: dict[Kind, int] = {}
        for text, translation in zip(texts, given, strict=True):
            kind = self._take(engine, text, translation, source, target, found, problems)
            kinds[kind] = kinds.get(kind, 0) + 1
        for kind, count in kinds.items():
            share = seconds * count / len(texts)
            self._note(Event(engine.name, source, target, kind, count, share))

    def _take(
        self,
        engine: Engine,
        text: str,
        translation: Translation | None,
        source: str,
        target: str,
        found: dict[tuple[str, str], Outcome],
        problems: dict[str, Untranslated],
    ) -> Kind:
        if translation is None:
            problems.setdefault(
                text, Untranslated("no_translator", f"{engine.name} has nothing for this text")
            )
            return "missing"
        wrong = self.judge(text, translation.text, target, source)
        if wrong is None and _below(translation, engine):
            wrong = Flaw("quality", f"is worth {translation.quality:.2f} by its own account")
        if wrong is not None:
            self.refused(text, translation, wrong)
            message = f"{engine.name}: its translation {wrong.rule}"
            problems[text] = Untranslated("nonsense", message)
            return "nonsense"
        found[source, text] = translation
        self.cache.put(Key(engine.name, source, target, text), translation)
        if self.recorder is not None and not isinstance(engine.translator, Recorded):
            row = RecordedRow(
                source, target, text, translation.text, translation.engine, translation.quality
            )
            self.recorder.write(row)
        return "translated"

    def _note(self, event: Event) -> None:
        self.statistics(event)
        for observe in self.observers:
            observe(event)


def _is_name(language: str | None) -> TypeGuard[str]:
    return language is not None and len(language) <= LONGEST_NAME


async def _together(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All at once. One alone, as most are, without a task: that would take longer than to route it."""
    if len(work) == 1:
        await work[0]
        return
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None


def _below(translation: Translation, engine: Engine) -> bool:
    return translation.quality is not None and translation.quality < engine.least_quality
