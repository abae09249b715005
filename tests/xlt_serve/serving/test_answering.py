"""What a request costs before it is tokenised, and what is more than one may ask for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.errors import TooMuch
from xlt_serve.modes.base import Asked, Cost
from xlt_serve.modes.zero_shot import Candidates, ZeroShot
from xlt_serve.serving import answering
from xlt_serve.serving.admission import BYTES_PER_TOKEN, Limits, Ticket
from xlt_serve.serving.answering import AnsweredQuery, Estimate
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.registry import least_sizes
from xlt_serve.types import Prediction, Settings


def asked(items: list[Any], translations: list[Any] | None = None, **settings: Any) -> Asked:
    return Asked(items, Settings(**settings), translations)


TEXTS = st.lists(st.text(max_size=60), min_size=1, max_size=20)


@given(TEXTS, st.integers(1, 100), st.integers(1, 50))
def test_of_a_text_no_more_counts_than_is_read(texts: list[str], passes: int, most: int) -> None:
    found = answering.demand_of(asked(texts), Cost(passes=passes), most)
    assert found.text == sum(len(text.encode("utf-8", "replace")) for text in texts)
    assert found.rows == passes * len(texts)
    assert found.bytes <= passes * min(
        most * len(texts), sum(len(text.encode("utf-8", "replace")) for text in texts)
    )


def test_what_every_pass_tokenises_anew_is_counted() -> None:
    """Draws of synonyms: of a text of 99 kB no more than a draw keeps."""
    found = answering.demand_of(asked(["a" * 99_000, "ab"]), Cost(passes=10, again=8192), 1536)
    assert found.text == 99_002 + 10 * (8192 + 2)


def test_of_both_sides_of_a_pair_a_draw_is_tokenised() -> None:
    pair = asked([("a" * 99_000, "b" * 99_000)])
    found = answering.demand_of(pair, Cost(passes=10, again=8192), 1536)
    assert found.text == 2 * 99_000 + 10 * 2 * 8192


def test_an_answer_of_many_labels_is_not_written_on_the_event_loop() -> None:
    """However few and short its texts are."""
    assert answering.few_probabilities(["a", "b"], 16)
    assert not answering.few_probabilities([str(number) for number in range(50_000)], 1)


def test_windows_labels_and_pairs_are_counted_before_anything_is_tokenised() -> None:
    windows = answering.demand_of(asked(["a b " * 24_999], long="windows"), Cost(), 1536)
    assert 4 * 24_999 - 1536 <= windows.bytes <= 4 * 24_999
    assert 60 <= windows.rows <= 110
    short = answering.demand_of(asked(["a b " * 24_999], long="windows"), Cost(), 24)
    assert short.rows > 4000
    pair = answering.demand_of(asked([("a b " * 500, "a b " * 1000)], long="windows"), Cost(), 1536)
    assert pair.rows == 1 + 4000 // 768
    assert pair.bytes > 2 * 1536
    labels = answering.demand_of(asked(["text", "text"]), Cost(passes=50, more=20), 1536)
    assert labels == Estimate(bytes=50 * (8 + 40), rows=100, text=8)
    odd = asked([("one", "two"), ["x", 3], None])
    assert answering.demand_of(odd, Cost(), 99).bytes == 7


def test_a_chunk_has_so_many_items_and_so_much_text() -> None:
    """Tokenising is not shared among clients: what one chunk takes, others wait."""
    chunks = answering.chunks_of(answering.lengths(asked(["a" * 100_000, "b", 3, "c"])), Cost())
    assert chunks == [(0, 1), (1, 4)]
    large = answering.chunks_of(answering.lengths(asked([("a" * 9_000, "b" * 1_000)] * 32)), Cost())
    assert large == [(start, min(start + 5, 32)) for start in range(0, 32, 5)]
    own = asked(["a"] * 6, ["a" * 20_000] * 6)
    assert answering.chunks_of(answering.lengths(own), Cost()) == [(0, 2), (2, 4), (4, 6)]
    assert answering.chunks_of([1] * 70, Cost()) == [(0, 32), (32, 64), (64, 70)]
    assert answering.chunks_of([10**6] * 3, Cost(shared=1)) == [(0, 3)]
    assert answering.chunks_of([], Cost()) == []


def test_draws_times_tokens_are_bounded() -> None:
    limits, cost = Limits(drawn_tokens=1000), Cost(passes=12, draws=100)
    fits = Estimate(bytes=12 * 10 * BYTES_PER_TOKEN, rows=12)
    answering.refuse_too_much(fits, cost, Settings(), limits)
    with pytest.raises(Refusal, match=r"100 draws of 11 tokens.*may draw 1000.*fewer samples"):
        answering.refuse_too_much(
            Estimate(bytes=12 * 11 * BYTES_PER_TOKEN, rows=12), cost, Settings(), limits
        )


def test_windows_of_a_request_are_bounded() -> None:
    """By a guess from the bytes, which may be five times too high: then they are counted."""
    settings, limits = Settings(long="windows"), Limits(windows=20)
    answering.refuse_too_much(Estimate(bytes=1, rows=100), Cost(), settings, limits)
    with pytest.raises(TooMuch, match=r"101 windows.*read in 20"):
        answering.refuse_too_much(Estimate(bytes=1, rows=101), Cost(), settings, limits)


def answered(count: int, labels: int) -> tuple[AnsweredQuery, Any]:
    scores = {f"label {number}": 1 / labels for number in range(labels)}
    reply = AnsweredQuery([Prediction("label 0", scores)] * count, Ticket(0.0, 1), 0.1)
    manifest = SimpleNamespace(name="its own", version="1")
    classifier = SimpleNamespace(bundle=SimpleNamespace(manifest=manifest))
    return reply, SimpleNamespace(name="topics", classifier=classifier, label_sizes=(7,) * labels)


def test_an_answer_is_written_in_pieces_and_is_whole() -> None:
    reply, loaded = answered(count=300, labels=50)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> bytes:
        task = asyncio.create_task(others())
        written = await answering.body(reply, loaded, 10**7)
        task.cancel()
        return written

    body = asyncio.run(main())
    found = json.loads(body)
    assert found["predictions"] == [reply.predictions[0].to_dict()] * 300
    assert found["bundle"] == {"name": "topics", "version": "1"}
    assert turns >= len(body) // answering.PIECE - 1


def test_many_large_answers_take_no_more_of_a_round_than_one() -> None:
    """Beside the little that each writes first."""

    def most(answers: int) -> int:
        """Items that are written in a round of the loop, once all have begun."""
        rounds, written = 0, Counter[int]()
        reply, loaded = answered(count=300, labels=50)

        class Told(Prediction):
            def to_dict(self) -> dict[str, Any]:
                written[rounds] += 1
                return super().to_dict()

        told = Told(reply.predictions[0].label, reply.predictions[0].probabilities)
        reply = replace(reply, predictions=[told] * 300)

        async def ticks() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        async def main() -> None:
            ticking = asyncio.create_task(ticks())
            await asyncio.gather(*(answering.body(reply, loaded, 10**7) for _ in range(answers)))
            ticking.cancel()

        asyncio.run(main())
        first = min(written)
        return max(count for number, count in written.items() if number > first + 1)

    assert most(20) == most(1)


@pytest.mark.parametrize("count", [0, 1])
def test_small_answers_too(count: int) -> None:
    reply, loaded = answered(count, labels=2)
    assert len(json.loads(asyncio.run(answering.body(reply, loaded, 1000)))["predictions"]) == count


def test_an_answer_has_a_largest_size() -> None:
    reply, loaded = answered(count=300, labels=50)
    with pytest.raises(Refusal, match=r"300 items.*may have 100000 bytes.*top_k") as refused:
        asyncio.run(answering.body(reply, loaded, 100_000))
    assert refused.value.status == 413


def test_the_clients_own_translations_are_counted() -> None:
    """Their tokens run, whatever the texts have."""
    own = asked(["a"] * 1000, ["long " * 1000] * 1000, mode="translate")
    found = answering.demand_of(own, Cost(), 384)
    assert found == Estimate(bytes=1000 * 384, rows=1000, text=1000 + 1000 * 5000)
    some = asked(["ab", "ab"], [None, "abc"], mode="translate")
    assert answering.demand_of(some, Cost(passes=2), 384) == Estimate(bytes=10, rows=4, text=7)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (asked(["a", "b"], mode="plain"), False),
        (asked(["a", "b"], mode="translate"), True),
        (asked(["a", "b"], ["x", None], mode="paired"), True),
        (asked(["a", "b"], ["x", "y"], mode="translate"), False),
        (asked(["a", "b"], mode="translate", language="en-GB"), False),
        (asked(["a", "b"], mode="translate", language="de"), True),
    ],
)
def test_only_what_may_be_translated_waits_for_translators(query: Asked, expected: bool) -> None:
    """What does not is shed like all else."""
    manifest = SimpleNamespace(source_language="en")
    loaded: Any = SimpleNamespace(bundle=SimpleNamespace(manifest=manifest), translators=object())
    assert answering.to_translate(loaded, query) == expected
    loaded.translators = None
    assert not answering.to_translate(loaded, query)


def zero_shot_cost(scorer: str, language: str | None = None, **candidates: Any) -> Cost:
    bundle = SimpleNamespace(manifest=SimpleNamespace(checks={}))
    settings = Settings(
        "zero_shot", language=language, options=Candidates(scorer=scorer, **candidates)
    )
    return ZeroShot().cost(SimpleNamespace(bundle=bundle), settings)  # type: ignore[arg-type]


def test_the_longest_template_is_the_price_of_a_label() -> None:
    template = {"de": "ü" * 500 + "{}", "*": "{}"}
    found = zero_shot_cost("nli", labels=("ab", "ö"), template=template)
    assert found == Cost(passes=2, more=1002, beside=4 + 2 * 1000, kinds=2)
    assert zero_shot_cost("nli", "fr", labels=("ab", "ö"), template=template).more == 2
    assert zero_shot_cost("nli", labels=("ab",)).more == len("This text is about ab.")


def test_every_template_that_a_chunk_may_meet_is_counted() -> None:
    cost = Cost(passes=2, beside=100, kinds=3)
    for texts, chunks, times in ((1, 1, 1), (2, 1, 2), (32, 1, 3), (40, 2, 6), (3, 2, 3)):
        found = answering.demand_of(asked(["ab"] * texts), cost, 384, chunks)
        assert found.text == 2 * texts + 100 * times


def test_labels_are_counted_where_they_run_on_their_own() -> None:
    template = {"de": "12345{}", "*": "123{}"}
    found = zero_shot_cost("similarity", labels=("ab", "c"), template=template)
    assert found == Cost(shared=4, beside=2 * 3 + 2 * (5 + 3))
    assert answering.demand_of(asked(["text"]), found, 384) == Estimate(4 + 22, 1 + 4, 4 + 22)
    assert answering.demand_of(asked(["text"]), found, 2) == Estimate(2 + 8, 1 + 4, 4 + 22)


def test_an_answer_that_is_sure_to_be_too_large_is_refused_before_the_work() -> None:
    sizes = least_sizes(["a" * 1000, "b" * 500])
    for texts, top_k, most, fits in (
        (["x"] * 10, None, 15_100, True),
        (["x"] * 10, None, 15_099, False),
        (["x"] * 10, 1, 5_050, True),
        (["x"] * 10, 1, 5_049, False),
        (["x"] * 10, 9, 15_100, True),
        (["x", "", None, 7, ("x", "y")], None, 1_510, True),  # an error names no label
        (["x", "", None, 7, ("x", "y")], None, 1_509, False),
    ):
        with contextlib.nullcontext() if fits else pytest.raises(Refusal, match="an answer may"):
            answering.refuse_large_answer(texts, sizes, top_k, most)
    pairs = [("x", "y"), ["x", ""], "x"]
    answering.refuse_large_answer(pairs, sizes, None, 1_510, pair=True)
    with pytest.raises(Refusal, match=r"3 items × 2 labels.*may have 1509 bytes.*top_k"):
        answering.refuse_large_answer(pairs, sizes, None, 1_509, pair=True)
