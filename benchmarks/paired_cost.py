"""What prediction with translations costs: its graph, and a request beside its engine."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xlt_training.exporting import checkpoint as export

from benchmarks.paired_data import SOURCE, Language
from xlt_serve import bundle as bundles
from xlt_serve.runtime.graph_io import random_pieces


def cost(options: argparse.Namespace, items: dict[str, Language]) -> dict[str, Any]:
    """The paired graph against the plain one, and what a request costs beside its engines."""
    place: Any = options.bundle
    if not place:
        place = options.work / "bundle"
        if not (place / bundles.MANIFEST).is_file():
            order = export.Order(
                name="paired-cost", precision="int8", agreement=0.9, languages=[SOURCE]
            )
            export.export(options.work / "xmixup-0", place, order)
    return {"graphs": graph_ratios(place), "overhead": overheads(place, items, options)}


SHAPES = ((1, 16), (1, 32), (1, 128), (16, 32), (32, 64), (8, 128))


def graph_ratios(
    place: str | Path, rounds: int = 60, shapes: Sequence[tuple[int, int]] = SHAPES
) -> dict[str, dict[str, float]]:
    """Median time of both graphs at the same lengths, in turns."""
    from xlt_serve.classifier import Classifier as Served

    served = Served(bundles.load(place))
    runners: dict[str, Any] = {name: served.runners.of(name) for name in ("plain", "paired")}
    out = {}
    for rows, length in shapes:
        pieces = random_pieces(rows, length, vocabulary=60, ragged=False)
        feeds = {
            name: runner.io.feeds([runner.io.row(piece) for piece in pieces])
            for name, runner in runners.items()
        }
        times: dict[str, list[float]] = {name: [] for name in runners}
        for number in range(rounds + 2):
            for name, runner in runners.items():
                begun = time.perf_counter()
                runner.session.run(feeds[name])
                if number >= 2:
                    times[name].append(time.perf_counter() - begun)
        medians = {name: 1000 * statistics.median(values) for name, values in times.items()}
        ratio = medians["paired"] / medians["plain"]
        shape = f"{rows}x{length}"
        out[shape] = {f"{name}_ms": value for name, value in medians.items()} | {"ratio": ratio}
    return out


def overheads(
    place: str | Path, items: dict[str, Language], options: argparse.Namespace
) -> dict[str, Any]:
    """(total − translator − bare session) ÷ total of paired prediction, with the real engines that
    are here; the cache is off."""
    from xlt_serve.classifier import Classifier as Served
    from xlt_serve.translation.apertium import Apertium
    from xlt_serve.translation.cache import TranslationCache
    from xlt_serve.translation.ctranslate2 import CTranslate2
    from xlt_serve.translation.router import Engine, Router
    from xlt_serve.translation.translators import Translators

    made: dict[str, Callable[[], Any]] = {
        "es": Apertium,
        "zh": lambda: CTranslate2(Path("build/translators/zh-en")),
    }
    out: dict[str, Any] = {}
    for language, make in made.items():
        if language not in items:
            continue
        texts = [item.example.text for item in items[language].items][:96]
        try:
            engine = Engine(make(), timeout=120)
        except Exception as error:
            out[language] = {"skipped": str(error)}
            continue
        router = Router({"engine": engine}, cache=TranslationCache(entries=0))
        with Translators(router) as translators:
            served = Served(bundles.load(place), translators=translators)
            session = served.runners.of("paired").session
            spent = 0.0
            bare = session.run

            def timed(feeds: Any, bare: Any = bare) -> Any:
                nonlocal spent
                begun = time.perf_counter()
                result = bare(feeds)
                spent += time.perf_counter() - begun
                return result

            session.run = timed  # type: ignore[method-assign]
            for size in (1, 32):
                served.predict(texts[:size], mode="paired", language=language)  # warm-up
                spent, before = 0.0, _engine_seconds(translators)
                begun = time.perf_counter()
                for start in range(0, len(texts), size):
                    served.predict(texts[start : start + size], mode="paired", language=language)
                total = time.perf_counter() - begun
                translating = _engine_seconds(translators) - before
                out[f"{language}, {size} at once"] = {
                    "engine": engine.name,
                    "total_ms_per_text": 1000 * total / len(texts),
                    "translator": translating / total,
                    "session": spent / total,
                    "rest": (total - translating - spent) / total,
                }
    return out


def _engine_seconds(translators: Any) -> float:
    rows = translators.statistics.snapshot()
    return float(max((row["engine_seconds"] for row in rows), default=0.0))
