"""Routes, fall-backs, time-outs, the cache: whatever engines do, there is an outcome for each text."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.xlt_serve.translation.engines import Faulty, Loose, Shouting
from xlt_serve.errors import DataError
from xlt_serve.translation import load
from xlt_serve.translation.breaker import Breaker
from xlt_serve.translation.cache import TranslationCache
from xlt_serve.translation.protocol import (
    PairRefused,
    Translation,
    Translator,
    Untranslated,
)
from xlt_serve.translation.recorded import Recorded, RecordedRow, Recorder, read
from xlt_serve.translation.router import Engine, Router
from xlt_serve.translation.statistics import Event
from xlt_serve.translation.translators import Translators


def router(*translators: Translator, **rest: object) -> Router:
    engines = {t.name: Engine(t, timeout=0.2) for t in translators}
    return Router(engines, **rest)  # type: ignore[arg-type]


def ask(one: Router, texts: list[str], seconds: float | None = None) -> list[object]:
    return list(asyncio.run(one.translate(texts, ["de"] * len(texts), "en", seconds)))


def crash(texts: list[str]) -> list[str]:
    raise OSError("the engine is on fire")


def give_up(texts: list[str]) -> list[str]:
    raise asyncio.CancelledError  # as from a task of its own that somebody cancelled


def test_each_text_has_its_translation_in_order() -> None:
    one = router(Shouting())
    given = ["b", "a", "b", "ccc"]
    assert [t.text for t in ask(one, given)] == ["B", "A", "B", "CCC"]  # type: ignore[attr-defined]
    assert sum(map(len, one.engines["shouting"].translator.calls)) == 3  # type: ignore[attr-defined]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text("abc", min_size=1, max_size=5), max_size=30), st.integers(1, 7))
def test_batches_change_no_outcome(texts: list[str], batch: int) -> None:
    one = Router({"shouting": Engine(Shouting(), batch=batch, calls=2)})
    out = ask(one, texts)
    assert [t.text for t in out] == [text.upper() for text in texts]  # type: ignore[attr-defined]
    assert all(len(call) <= batch for call in one.engines["shouting"].translator.calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "first",
    [
        Faulty(say=crash),
        Faulty(say=lambda texts: texts[:-1]),
        Faulty(say=lambda texts: [""] * len(texts)),
        Faulty(say=lambda texts: [None] * len(texts)),
        Faulty(say=lambda texts: [7] * len(texts)),
        Faulty(say=give_up),
        Loose(),
        Shouting(name="faulty", delay=30.0),
    ],
    ids=["crashes", "too few", "empty", "nothing", "a number", "gives up", "loose", "hangs"],
)
def test_the_next_engine_takes_over(first: Shouting) -> None:
    one = router(first, Shouting())
    begun = time.monotonic()
    assert ask(one, ["hallo"]) == [Translation("HALLO", "shouting", 0.5)]
    assert time.monotonic() - begun < 15


def test_only_what_failed_falls_back() -> None:
    first = Faulty(say=lambda texts: [t.title() if "a" in t else "" for t in texts])
    second = Shouting()
    out = ask(router(first, second), ["hallo", "du", "da"])
    assert [t.engine for t in out] == ["faulty", "shouting", "faulty"]  # type: ignore[attr-defined]
    assert second.calls == [["du"]]


@pytest.mark.parametrize(
    ("engine", "code", "words"),
    [
        (Faulty(say=crash), "failed", "on fire"),
        (Faulty(say=lambda texts: ["字"] * len(texts)), "nonsense", "letters of en"),
        (Shouting(delay=30.0), "timeout", "0.2 s"),
    ],
)
def test_the_last_problem_is_the_reason(engine: Shouting, code: str, words: str) -> None:
    (out,) = ask(router(engine), ["hallo"])
    assert isinstance(out, Untranslated)
    assert out.code == code
    assert words in out.message


def test_a_language_that_is_unknown_or_has_no_engine_says_so() -> None:
    one = router(Shouting())
    unknown, none = asyncio.run(one.translate(["a", "b"], [None, "xx"], "en"))
    assert isinstance(unknown, Untranslated)
    assert unknown.code == "language"
    assert isinstance(none, Untranslated)
    assert none.message == "no translator from xx to en is configured"


def test_a_translation_below_the_least_quality_is_none() -> None:
    engine = Engine(Shouting(), least_quality=0.6)  # it gives itself 0.5
    (out,) = ask(Router({"shouting": engine}), ["hallo"])
    assert isinstance(out, Untranslated)
    assert out.message == "shouting: its translation is worth 0.50 by its own account"
    (out,) = ask(Router({"shouting": engine, "faulty": Engine(Faulty())}), ["hallo"])
    assert out == Translation("hallo", "faulty")  # it has no opinion of itself


def test_routes_choose_by_language() -> None:
    a, b = Shouting("a"), Shouting("b")
    one = router(a, b, routes={"de": ["b"], "default": ["a"]})
    out = asyncio.run(one.translate(["x", "y"], ["de", "fr"], "en"))
    assert [t.engine for t in out] == ["b", "a"]  # type: ignore[union-attr]


def test_a_translation_is_made_once() -> None:
    engine = Shouting()
    one = router(engine)
    ask(one, ["hallo", "welt"])
    assert [t.text for t in ask(one, ["welt", "neu"])] == ["WELT", "NEU"]  # type: ignore[attr-defined]
    assert sorted(text for call in engine.calls for text in call) == ["hallo", "neu", "welt"]
    assert one.statistics.texts("cached") == 1
    assert one.statistics.texts("translated") == 3


def test_the_cache_stays_bounded() -> None:
    one = router(Shouting(), cache=TranslationCache(entries=5))
    for number in range(20):
        ask(one, [f"text {number}"])
    assert len(one.cache) == 5


def test_a_failing_engine_is_left_alone_for_a_while() -> None:
    engine = Faulty(say=crash)
    one = Router({"faulty": Engine(engine, breaker=Breaker(failures=2, rest=60))})
    reasons = [ask(one, ["x"])[0] for _ in range(4)]
    assert [r.code for r in reasons] == ["failed", "failed", "resting", "resting"]  # type: ignore[attr-defined]
    assert len(engine.calls) == 2


def test_a_refused_pair_is_no_failure() -> None:
    def refuse(texts: list[str]) -> list[str]:
        raise PairRefused("de-en", "is not known here")

    engine = Faulty(say=refuse)
    one = Router({"faulty": Engine(engine, breaker=Breaker(failures=1, rest=60))})
    for _ in range(3):
        (out,) = ask(one, ["x"])
        assert isinstance(out, Untranslated)
    assert len(engine.calls) == 3


def test_the_deadline_keeps_what_is_ready() -> None:
    slow = Shouting("slow", delay=30.0)
    engines = {"quick": Engine(Shouting("quick")), "slow": Engine(slow, timeout=60)}
    one = Router(engines, {"de": ["quick"], "fr": ["slow"]})
    begun = time.monotonic()
    ready, late = asyncio.run(one.translate(["a", "b"], ["de", "fr"], "en", 0.1))
    assert time.monotonic() - begun < 15
    assert isinstance(ready, Translation)
    assert isinstance(late, Untranslated)
    assert late.code == "timeout"
    assert slow.cancelled == 1


def test_a_mistake_of_ours_is_raised_and_leaves_nothing_running() -> None:
    def broken(event: Event) -> None:
        raise TimeoutError("not the deadline's")

    slow = Shouting("slow", delay=30.0)
    engines = {"quick": Engine(Shouting("quick")), "slow": Engine(slow, timeout=60)}
    one = Router(engines, {"de": ["quick"], "fr": ["slow"]}, observers=[broken])
    with pytest.raises(TimeoutError, match="not the deadline's"):
        asyncio.run(one.translate(["a", "b"], ["de", "fr"], "en", 10))
    assert slow.cancelled == 1


def test_long_texts_are_cut_before_they_are_translated() -> None:
    engine = Shouting()
    ask(router(engine, longest=50), ["wort " * 100])
    assert len(engine.calls[0][0]) <= 50


def test_observers_hear_of_everything() -> None:
    heard: list[Event] = []
    one = router(Faulty(say=crash), Shouting(), observers=[heard.append])
    ask(one, ["x"])
    ask(one, ["x"])
    assert [(e.engine, e.kind, e.texts) for e in heard] == [
        ("faulty", "failed", 1),
        ("shouting", "translated", 1),
        ("faulty", "failed", 1),
        ("shouting", "cached", 1),
    ]


def test_what_is_recorded_is_known_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "kept.jsonl"
    first = router(Shouting(), recorder=Recorder(file))
    ask(first, ["hallo", "welt"])
    first.close()
    with file.open("a") as handle:
        handle.write("\n")
    table = Recorded().add(read(file))
    assert len(table) == 2
    engine = Shouting()
    again = router(table, engine, recorder=Recorder(file))
    out = ask(again, ["welt", "neu"])
    again.close()
    assert out == [Translation("WELT", "shouting", 0.5), Translation("NEU", "shouting", 0.5)]
    assert engine.calls == [["neu"]]
    assert read(file)[-1] == RecordedRow("de", "en", "neu", "NEU", "shouting", 0.5)
    assert len(read(file)) == 3


def test_a_torn_record_is_no_obstacle(tmp_path: Path) -> None:
    """Of a process that was killed: half a line, to which the next one added its own."""
    file = tmp_path / "kept.jsonl"
    whole = json.dumps({"source": "de", "target": "en", "text": "ja", "translation": "yes"})
    file.write_text(f'{whole}\n{whole[:30]}\nen", "text": "halb"}}\n{whole[:12]}')
    one = router(Shouting(), recorder=Recorder(file))
    ask(one, ["neu"])
    one.close()
    with pytest.raises(DataError, match="line 2"):
        read(file)
    assert [row.text for row in read(file, torn=True)] == ["ja", "neu"]
    config = tmp_path / "engines.toml"
    config.write_text('record = "kept.jsonl"\n[engine.libre]\nkind = "http"\nurl = "http://x"\n')
    with load(config) as translators:
        assert "recorded" in translators.router.engines


def test_a_record_that_cannot_be_written_hinders_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    full = Path("/dev/full")
    for place in [tmp_path / "file" / "kept.jsonl", *([full] if full.exists() else [])]:
        caplog.clear()
        one = router(Shouting(), recorder=Recorder(place))
        assert ask(one, ["hallo", "welt"])[1] == Translation("WELT", "shouting", 0.5)
        one.close()
        assert [r.getMessage().split(": can't")[0] for r in caplog.records] == [str(place)]


@pytest.fixture
def translators() -> Iterator[Translators]:
    with Translators(router(Shouting(delay=0.02)), deadline=5) as made:
        yield made


def test_scripts_threads_and_loops_share_the_engines(translators: Translators) -> None:
    found: list[object] = []

    def one(number: int) -> None:
        found.append(translators.translate([f"t{number}"], ["de"], "en")[0].text)  # type: ignore[union-attr]

    threads = [threading.Thread(target=one, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, found)) == ["T0", "T1", "T2", "T3", "T4"]
    for _ in range(2):  # each run has a loop of its own
        out = asyncio.run(translators.translate_async(["neu"], ["de"], "en"))
        assert out == [Translation("NEU", "shouting", 0.5)]


def test_a_caller_that_leaves_stops_the_engine() -> None:
    engine = Shouting(delay=30)
    one = Router({"shouting": Engine(engine, timeout=60)})

    async def leave(translators: Translators) -> None:
        task = asyncio.ensure_future(translators.translate_async(["a"], ["de"], "en"))
        while not engine.calls:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with Translators(one) as translators:
        asyncio.run(leave(translators))
        for _ in range(200):
            if engine.cancelled:
                break
            time.sleep(0.01)
    assert engine.cancelled == 1
    assert engine.closed


def test_the_shorter_of_two_limits_holds() -> None:
    for deadline, seconds in ((0.05, None), (None, 0.05), (30.0, 0.05), (0.05, 30.0)):
        one = Router({"shouting": Engine(Shouting(delay=20), timeout=60)})
        with Translators(one, deadline) as translators:
            begun = time.monotonic()
            (out,) = asyncio.run(translators.translate_async(["a"], ["de"], "en", seconds))
        assert isinstance(out, Untranslated)
        assert out.message == "no translation within 0.05 s"
        assert time.monotonic() - begun < 15


def test_closed_translators_refuse(translators: Translators) -> None:
    translators.translate(["a"], ["de"], "en")
    translators.close()
    translators.close()
    with pytest.raises(RuntimeError, match="closed"):
        translators.translate(["a"], ["de"], "en")


def test_a_language_of_a_megabyte_is_none_and_is_not_kept() -> None:
    shouting = Shouting()
    one = router(shouting)
    long = "x" * 1_000_000
    found = asyncio.run(one.translate(["a", "b"], [long, "de"], "en"))
    assert isinstance(found[0], Untranslated)
    assert found[0].code == "language"
    assert len(found[0].message) < 200
    assert isinstance(found[1], Translation)
    assert [row["source"] for row in one.statistics.snapshot()] == ["de"]
    assert shouting.calls == [["b"]]
