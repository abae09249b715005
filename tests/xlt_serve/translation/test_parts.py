"""The pure parts: sentences, sanity, cache, breaker, statistics."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.translation.breaker import Breaker
from xlt_serve.translation.cache import Key, TranslationCache
from xlt_serve.translation.protocol import Translation
from xlt_serve.translation.sanity import nonsense
from xlt_serve.translation.sentences import head, pieces
from xlt_serve.translation.statistics import OTHER, PAIRS, Event, Statistics

TEXTS = st.text(alphabet=st.sampled_from("ab 。.!?\n  é字"), max_size=200)


@given(TEXTS, st.integers(8, 60))
def test_pieces_lose_only_space_and_none_is_too_long(text: str, longest: int) -> None:
    out = pieces(text, longest)
    assert "".join("".join(out).split()) == "".join(text.split())
    assert all(piece and len(piece) <= longest and piece == piece.strip() for piece in out)


def test_sentences_are_split_where_they_end() -> None:
    assert pieces("The first sentence is here. And the second follows it!") == [
        "The first sentence is here.",
        "And the second follows it!",
    ]
    assert pieces("科学家说可以预防疾病。他们发表了结果。") == [
        "科学家说可以预防疾病。",
        "他们发表了结果。",
    ]
    assert pieces("Dr. Smith went to Washington.") == ["Dr. Smith went to Washington."]


@given(TEXTS, st.integers(8, 60))
def test_a_head_is_a_beginning(text: str, longest: int) -> None:
    assert len(head(text, longest)) <= longest
    assert text.strip().startswith(head(text, longest).strip())


@pytest.mark.parametrize(
    ("text", "translation", "word"),
    [
        ("Hola mundo", "", "empty"),
        ("Hola mundo", "  \n", "empty"),
        ("Hola mundo", None, "not text"),
        ("Hola mundo", "a\ud800b", "Unicode"),
        ("Hola mundo", "Hello\0world", "broken"),
        ("Hola mundo", "Hello �", "broken"),
        ("Hola", "word " * 80, "long"),
        ("palabra " * 60, "no", "long"),
        ("El gato come pescado en la casa de mi abuela todos los días", "the " * 30, "repeats"),
        ("Una frase normal de unas palabras", "I said that " * 10, "repeats"),
        ("今天天气很好", "今天天气很好", "letters"),
    ],
)
def test_nonsense_is_recognised(text: str, translation: object, word: str) -> None:
    assert word in (nonsense(text, translation, "en") or "")


@pytest.mark.parametrize(
    ("text", "translation"),
    [
        ("Hola", "Hello"),
        ("今天天气很好，我们去公园打篮球。", "It's a nice day. We're going to the park."),
        ("12:30", "12:30"),
        ("no no no no no no no no no no no no no", "no no no no no no no no no no no no no"),
        ("Él es el mejor", "He is the best"),
        ("新", "New and improved, as one says in such cases"),
    ],
)
def test_a_translation_is_none(text: str, translation: str) -> None:
    assert nonsense(text, translation, "en") is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(0, 30)), max_size=60))
def test_the_cache_is_the_plain_model_of_one(steps: list[tuple[bool, int, int]]) -> None:
    cache = TranslationCache(entries=4, characters=60)
    model: OrderedDict[str, str] = OrderedDict()
    for puts, number, size in steps:
        text = f"t{number}"
        key = Key("e", "de", "en", text)
        if puts:
            cache.put(key, Translation("x" * size, "e"))
            model.pop(text, None)
            model[text] = "x" * size
            while len(model) > 4 or sum(len(k) + len(v) for k, v in model.items()) > 60:
                model.popitem(last=False)
        else:
            found = cache.get(key)
            assert (found.text if found else None) == model.get(text)
            if text in model:
                model.move_to_end(text)
        assert len(cache) == len(model)
        assert cache.held == sum(len(k) + len(v) for k, v in model.items())


def test_another_engine_or_pair_is_another_entry() -> None:
    cache = TranslationCache()
    cache.put(Key("a", "de", "en", "x"), Translation("X", "a"))
    assert cache.get(Key("b", "de", "en", "x")) is None
    assert cache.get(Key("a", "nl", "en", "x")) is None
    assert cache.get(Key("a", "de", "en", "x")) == Translation("X", "a")


def test_a_cache_of_none_keeps_none() -> None:
    cache = TranslationCache(entries=0)
    cache.put(Key("a", "de", "en", "x"), Translation("X", "a"))
    assert len(cache) == 0


def test_the_breaker_opens_rests_and_tries_once() -> None:
    now = 0.0
    breaker = Breaker(failures=2, rest=10.0, clock=lambda: now)
    breaker.failed()
    assert breaker.lets_through()
    breaker.failed()
    assert not breaker.lets_through()
    now = 10.0
    assert breaker.lets_through()
    assert not breaker.lets_through()  # one tries, the others wait
    breaker.failed()
    now = 19.0
    assert not breaker.lets_through()
    now = 20.0
    assert breaker.lets_through()
    breaker.worked()
    assert breaker.lets_through()


def test_statistics_add_up() -> None:
    statistics = Statistics()
    for event in (
        Event("a", "de", "en", "translated", 3, 0.5),
        Event("a", "de", "en", "translated", 2, 0.25),
        Event("b", "de", "en", "translated", 1, 1.0),
        Event("a", "de", "en", "cached", 4),
    ):
        statistics(event)
    assert statistics.texts("translated") == 6
    assert statistics.texts("translated", "a") == 5
    rows = {(row["engine"], row["kind"]): row for row in statistics.snapshot()}
    assert rows["a", "cached"]["texts"] == 4
    assert rows["a", "translated"]["engine_seconds"] == 0.75


def test_statistics_of_any_number_of_languages_are_bounded() -> None:
    statistics = Statistics()
    statistics(Event("a", "de", "en", "cached", 1))
    for number in range(3 * PAIRS):
        statistics(Event("a", f"x{number}", "en", "missing", 1))
    statistics(Event("a", "de", "en", "cached", 1))
    rows = statistics.snapshot()
    assert len(rows) <= PAIRS + 1
    assert statistics.texts("missing") == 3 * PAIRS
    assert statistics.texts("cached") == 2
    assert {row["source"] for row in rows} >= {"de", OTHER}
