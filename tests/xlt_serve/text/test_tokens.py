from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tests.conftest import FILLER
from xlt_serve.errors import BundleError, ItemError, TooMuch
from xlt_serve.text import tokens as tokens_module
from xlt_serve.text.tokens import LARGEST, Encoder, Tokens, check, shares
from xlt_serve.types import Item

LONG = " ".join(FILLER * 12)
SHORT = "rain and snow"


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
@pytest.mark.parametrize("item", [SHORT, LONG, (SHORT, LONG), (LONG, SHORT), (LONG, LONG)])
def test_ids_are_those_of_transformers(
    encoders: dict[str, Path], family: str, item: object
) -> None:
    """Ours cuts with the tokenizers library alone; transformers is the independent answer."""
    reference = AutoTokenizer.from_pretrained(encoders[family])
    encoder = Encoder(encoders[family] / "tokenizer.json", 64)
    (tokens,) = encoder.encode([item])  # type: ignore[list-item]
    assert isinstance(tokens, Tokens)
    sides = item if isinstance(item, tuple) else (item,)
    expected = reference(
        *sides, truncation="longest_first", max_length=64, return_token_type_ids=True
    )
    assert tokens.pieces[0].ids == expected["input_ids"]
    assert tokens.pieces[0].type_ids == expected["token_type_ids"]
    assert tokens.count == len(reference(*sides, verbose=False)["input_ids"])
    assert tokens.truncated == (tokens.count > 64)


@pytest.mark.parametrize("items", [["~! " * 30_000], ["~! " * 30] * 40, [(SHORT, LONG * 200)]])
def test_windows_are_counted_before_they_are_made(
    encoders: dict[str, Path], items: list[Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else short windows over 3 MB are 600,000 pieces, and only then too many."""
    made, around = list[int](), tokens_module._Frame.around
    monkeypatch.setattr(
        tokens_module._Frame, "around", lambda *given: made.append(1) or around(*given)
    )
    encoder = Encoder(encoders["xlm-roberta"] / "tokenizer.json", 40)
    with pytest.raises(TooMuch, match=r"windows.*read in 50"):
        encoder.encode(items, "windows", 8, most=50)
    assert len(made) <= 100


@pytest.mark.parametrize("item", [LONG, (SHORT, LONG), (LONG, SHORT), (LONG, LONG)])
def test_windows_cover_the_text_and_overlap(encoders: dict[str, Path], item: object) -> None:
    encoder = Encoder(encoders["xlm-roberta"] / "tokenizer.json", 40)
    (tokens,) = encoder.encode([item], long="windows")  # type: ignore[list-item]
    assert isinstance(tokens, Tokens)
    assert len(tokens.pieces) > 1
    assert all(len(piece.ids) <= 40 for piece in tokens.pieces)
    if item == LONG:
        whole = (
            Encoder(encoders["xlm-roberta"] / "tokenizer.json", 10_000)
            .encode([LONG])[0]
            .pieces[0]
            .ids[1:-1]
        )  # type: ignore[union-attr]
        inner = [piece.ids[1:-1] for piece in tokens.pieces]
        step = len(inner[0]) - int(len(inner[0]) * 0.25)
        for number, part in enumerate(inner):
            assert part == whole[number * step : number * step + len(part)]
        assert (len(inner) - 1) * step + len(inner[-1]) == len(whole)
        assert not tokens.truncated
    assert tokens.truncated == (item == (LONG, LONG))


def test_a_long_text_can_be_refused(encoders: dict[str, Path]) -> None:
    encoder = Encoder(encoders["xlm-roberta"] / "tokenizer.json", 40)
    short, long = encoder.encode([SHORT, LONG], long="error")
    assert isinstance(short, Tokens)
    assert isinstance(long, ItemError)
    assert long.code == "too_long"
    assert "over the limit of 40" in str(long)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=2), st.integers(2, 300))
def test_shares_fill_the_room_and_spare_the_shorter(lengths: list[int], room: int) -> None:
    kept = shares(lengths, room)
    assert sum(kept) == min(sum(lengths), room)
    assert all(0 < k <= n for k, n in zip(kept, lengths, strict=True))
    if len(lengths) == 2 and min(lengths) <= room // 2:
        assert kept[lengths.index(min(lengths))] == min(lengths)


@pytest.mark.parametrize(
    ("item", "pair", "code"),
    [
        ("", False, "empty"),
        (" \t\n", False, "empty"),
        (None, False, "not_text"),
        (7, False, "not_text"),
        ("half \ud83d", False, "not_text"),
        (("a", "b"), False, "shape"),
        ("a", True, "shape"),
        (("a", "b", "c"), True, "shape"),
        (("a", ""), True, "empty"),
        ("x" * (LARGEST + 1), False, "too_large"),
        (("ж" * 30_000, "ж" * 30_000), True, "too_large"),
    ],
)
def test_wrong_items_have_a_reason(item: object, pair: bool, code: str) -> None:
    with pytest.raises(ItemError) as caught:
        check(item, pair)
    assert caught.value.code == code
    assert "\n" not in str(caught.value)


def test_largest_item_is_allowed() -> None:
    assert check("x" * LARGEST, pair=False) == "x" * LARGEST


def test_a_file_that_is_no_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(BundleError, match="is not a tokenizer file"):
        Encoder(file, 10)


def test_a_huge_pair_costs_no_more_than_its_length(encoders: dict[str, Path]) -> None:
    """Two long sides at a tiny limit: the library's own truncation would combine all the rests."""
    encoder = Encoder(encoders["bert"] / "tokenizer.json", 128)
    side = "rain and snow " * 3500
    begun = time.perf_counter()
    for long in ("truncate", "windows"):
        (tokens,) = encoder.encode([(side, side)], long=long, max_length=8)  # type: ignore[arg-type]
        assert isinstance(tokens, Tokens)
        assert all(len(piece.ids) <= 8 for piece in tokens.pieces)
    assert time.perf_counter() - begun < 20  # it took minutes and gigabytes; seconds are noise here


def test_a_text_of_no_token_is_empty(encoders: dict[str, Path]) -> None:
    encoder = Encoder(encoders["bert"] / "tokenizer.json", 32)
    for tokens in encoder.encode(["\u200b", ("rain", "\u200b")]):
        assert isinstance(tokens, ItemError)
        assert tokens.code == "empty"
