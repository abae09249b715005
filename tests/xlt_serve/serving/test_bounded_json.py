"""Bodies are counted before they are parsed, and large ones are parsed in pieces, as the json module would."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlt_serve.serving import bounded_json
from xlt_serve.serving.bounded_json import LONGEST, PIECE, Tally, parse
from xlt_serve.serving.failures import Refusal

MOST = 9000
SIZE = 8_000_000


def finished(body: bytes) -> tuple[Any, float]:
    """The value, and the seconds of the longest step."""
    steps, longest = parse(body), 0.0
    while True:
        begun = time.thread_time()
        try:
            next(steps)
        except StopIteration as done:
            return done.value, max(longest, time.thread_time() - begun)
        longest = max(longest, time.thread_time() - begun)


def refusal(body: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        finished(body)
    assert (caught.value.status, caught.value.code) == (400, "not_json")
    return caught.value


def texts(content: bytes) -> bytes:
    """As much as may come, in strings of the greatest length."""
    text = b'"' + content * (LONGEST // len(content)) + b'"'
    return b'{"texts":[' + b",".join([text] * 13) + b"]}"


LARGE = {
    "letters": texts(b"a"),
    "a thousand": b'{"texts":[' + b",".join([b'"' + b"abc " * 1999 + b'"'] * 1000) + b"]}",
    "nine thousand": b'{"texts":[' + b",".join([b'"' + b"a\\n" * 295 + b'"'] * 8900) + b"]}",
    "short ones": b'{"texts":[' + b",".join([b'"' + b"a\\n" * 32 + b'"'] * 8900) + b"]}",
    "escaped letters": texts(rb"\u00e9"),
    "escaped pairs": texts(rb"\ud83d\ude00"),
    "half characters": texts(rb"\ud83d"),
    "line breaks": texts(rb"a\n"),
    "quotes": texts(rb"\""),
    "backslashes": texts(rb"\\"),
    "quotes behind backslashes": texts(rb"\\\"\\"),
    "chinese": texts("中".encode()),
    "emoji": texts("😀".encode()),
    "one emoji each": texts(b"a" * (LONGEST - 4) + "😀".encode()),
    "blanks": b'{"texts":' + b" " * 890_000 + b'["' + b"a" * PIECE + b'"]}',
    "a long key": b'{"' + b"k" * LONGEST + b'":1}',
    "twice": b'{"texts":["' + b"a" * PIECE + b'"],"texts":["' + b"b" * PIECE + b'"]}',
}


@pytest.mark.parametrize("name", LARGE)
def test_large_bodies_are_read_in_short_steps(name: str) -> None:
    """As the json module reads them; the bound is generous, for machines that have other things to do."""
    body = LARGE[name]
    tally = Tally(MOST)
    tally.feed(body)
    value, longest = finished(body)
    assert value == json.loads(body)
    assert longest < 0.1


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@settings(deadline=None, max_examples=200)
@given(json_values, st.booleans(), st.integers(1, 40))
def test_every_value_is_read_in_pieces_as_at_once(value: Any, ascii_only: bool, piece: int) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_json, "PIECE", 12 + piece)
        patch.setattr(bounded_json, "LONG", 1)
        Tally(MOST).feed(body)
        assert finished(body)[0] == json.loads(body)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60), st.text(alphabet='"\\u0d8,[]{}:a1 \n\x01é', max_size=60))
def test_what_is_no_json_is_refused_in_pieces_as_at_once(raw: bytes, text: str) -> None:
    for body in (raw, text.encode(), b'["' + text.encode() + b'"]'):
        at_once = outcome(body)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bounded_json, "PIECE", 12)
            patch.setattr(bounded_json, "LONG", 1)
            in_pieces = outcome(body)
        assert in_pieces[0] == at_once[0]
        if at_once[0] == "value":
            assert in_pieces == at_once


def outcome(body: bytes) -> tuple[str, Any]:
    try:
        return "value", finished(body)[0]
    except Refusal as refused:
        return f"{refused.status} {refused.code}", str(refused)


@pytest.mark.parametrize(
    "end",
    [
        b'"',
        b"",
        b'"]',
        b'"],}',
        b'"], 1}',
        b'"]}}',
        b'"], "seed": NaN}',
        b'"], "seed": ' + b"9" * 5000 + b"}",
        b'\\x"]}',
        b'\\u12"]}',
        b'\n"]}',
        b'"],\n\n "\xc3\xa9": tru}',
        b'"], "a": "' + b"b" * 200 + b"\x01" + b'"}',
    ],
)
def test_a_large_body_is_refused_in_the_same_words_as_a_small_one(end: bytes) -> None:
    body = b'{"\xe4\xb8\xad": 1,\n "texts": ["' + b"a" * PIECE + end
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_json, "PIECE", 10 * PIECE)
        small = refusal(body)
    large = refusal(body)
    assert str(large) == str(small)


def test_an_error_far_behind_is_told_by_its_byte() -> None:
    """To count the lines and characters before it would be one long step of the event loop."""
    body = b'{"texts": ["' + (b"a" * 500_000 + b'","') * 3 + b'"], 1}'
    assert f"byte {len(body) - 2}" in str(refusal(body))


@pytest.mark.parametrize("place", [0, PIECE - 1, PIECE, 3 * PIECE])
def test_bytes_that_are_no_characters_are_told_by_their_place(place: int) -> None:
    body = b'["' + b"a" * place + b"\xff" + b"a" * PIECE + b'"]'
    assert str(refusal(body)) == f"byte {2 + place}: a body is UTF-8; encode it so"


@pytest.mark.parametrize(
    "body",
    [
        b'{"texts":["a"],"translations":[' + b"0," * 1_200_000 + b"0]}",
        b'{"texts":[' + b"[]," * 2_600_000 + b"[]]}",
        b"{" + b",".join(b'"%d":1' % number for number in range(160_000)) + b"}",
        b"{" + b'"a":1,' * 1_000_000 + b'"a":1}',
        b'{"seed":' + b"9" * SIZE + b"}",
        b'{"scale":0.' + b"9" * SIZE + b"}",
        b'"' * SIZE,
        b"," * SIZE,
        b" " * SIZE,
        b'["a' + b'","b' * 1_000_000,
    ],
    ids=[
        "zeros",
        "lists",
        "keys",
        "one key",
        "integer",
        "fraction",
        "quotes",
        "commas",
        "blanks",
        "strings",
    ],
)
def test_what_no_request_can_have_is_refused_unparsed(body: bytes) -> None:
    begun = time.thread_time()
    with pytest.raises(Refusal) as caught:
        Tally(MOST).feed(body)
    assert (caught.value.status, caught.value.code) == (413, "too_many_values")
    assert time.thread_time() - begun < 0.5


def test_a_string_that_is_no_text_however_it_is_written_is_refused_unparsed() -> None:
    text = b'"' + rb"\u0061" * (LONGEST // 6) + b'"'
    Tally(MOST).feed(b"[" + text + b"," + text + b"]")
    for more in (1, 100, PIECE):
        with pytest.raises(Refusal) as caught:
            Tally(MOST).feed(b'["a", "' + b"a" * more + text[1:])
        assert (caught.value.status, caught.value.code) == (413, "string_too_long")


def test_as_many_values_as_allowed_are_allowed() -> None:
    body = b"[" + b"1," * 99 + b"1]"
    Tally(100).feed(body)
    with pytest.raises(Refusal):
        Tally(99).feed(body)


@pytest.mark.parametrize("body", [b"[" * 101, b'{"a":' * 101, b'["]]]",' + b"[" * 100])
def test_what_lies_too_deep_is_refused_unparsed(body: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        Tally(MOST).feed(body)
    assert (caught.value.status, caught.value.code) == (400, "not_json")
    Tally(MOST).feed(body[:-6])


def test_pieces_of_any_size_are_counted_alike() -> None:
    body = json.dumps({'a"\\': ["x\\", '"', {"b,[{": [1, 2.5e-3, None]}], "\\\\": '\\"'}).encode()
    whole = Tally(MOST)
    whole.feed(body)
    for size in (1, 2, 3, 7):
        tally = Tally(MOST)
        for start in range(0, len(body), size):
            tally.feed(body[start : start + size])
        assert tally.values == whole.values == 12
