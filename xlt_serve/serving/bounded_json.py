"""JSON within bounds: counted before it is parsed, and parsed a piece at a time.

A parser holds the interpreter from the first byte to the last, and what reads its values does so again,
in whatever thread. So a body's values are counted while it comes in: what no request can have is refused
unparsed. Of a large body that is left, the strings are most: each is read by itself, a piece at a time,
and the rest is parsed with placeholders for them.
"""

from __future__ import annotations

import json
import secrets
from bisect import bisect_right
from collections.abc import Generator
from typing import Any, NoReturn

from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.turns import Steps
from xlt_serve.text.tokens import LARGEST

DEEPEST = 100
"""Levels of lists and objects; the wire format has three."""

PIECE = 64 * 1024
"""Bytes that are looked at in one step. Smaller bodies are parsed at once."""

LONG = 100
"""Bytes of a string that is read by itself, where a body is large."""

LONGEST = 6 * LARGEST
"""Bytes of a string: six are the longest escape of one byte, so nothing longer is a text that may be
classified."""

TOLD = 16 * PIECE
"""Bytes before an error up to which its line and column are counted, which takes as long as they are."""

WIDE = 100
"""Bytes outside strings that count as one more value: numbers and blanks may be long."""

MARKS, BRACKETS = b",:[{", b"[]{}"
_NOT_MARKS = bytes(set(range(256)) - set(MARKS))
_NOT_BRACKETS = bytes(set(range(256)) - set(BRACKETS))
_CONTINUED = bytes(range(0x80, 0xC0))


class Tally:
    """What a body has outside its strings, counted piece by piece: ``values``, keys included, and how
    deep they lie; and the longest string. What is no JSON is counted somehow: the parser will refuse it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.values = self._outside = self._string = self._depth = 0
        self._inside = self._escaped = self._broken = False

    def feed(self, data: bytes) -> None:
        """A ``Refusal`` as soon as there is too much."""
        for start in range(0, len(data), PIECE):
            self._count(data[start : start + PIECE])

    def _count(self, piece: bytes) -> None:
        masked, self._escaped = mask(piece, self._escaped)
        quotes = masked.count(b'"')
        if quotes > 2 * self.most:
            raise _too_many(self.most)
        parts = masked.split(b'"')
        if self._inside and self._string + len(parts[0]) > LONGEST:
            raise _too_long()
        outside = b"".join(parts[self._inside :: 2])
        self._string = len(parts[-1]) + (0 if quotes else self._string)
        self._inside ^= bool(quotes % 2)
        if not self._broken:
            self._descend(outside.translate(None, _NOT_BRACKETS))
        self._outside += len(outside)
        self.values += len(outside.translate(None, _NOT_MARKS))
        if max(self.values, self._outside // WIDE) > self.most:
            raise _too_many(self.most)

    def _descend(self, brackets: bytes) -> None:
        for bracket in brackets:
            self._depth += 1 if bracket in b"[{" else -1
            if self._depth > DEEPEST:
                raise too_deep()
            if self._depth < 0:  # nothing behind it will be parsed
                self._broken = True
                return


def mask(piece: bytes, escaped: bool) -> tuple[bytes, bool]:
    """As long as ``piece``, but each quote is one that begins or ends a string, each backslash one that
    begins an escape. ``escaped``: the byte before it was such a backslash; the second value: the last
    byte is."""
    if escaped:
        piece = b"_" + piece[1:]
    if b"\\" in piece:
        piece = piece.replace(b"\\\\", b"\\_").replace(b'\\"', b"\\_")
    return piece, piece.endswith(b"\\")


def parse(body: bytes) -> Steps:
    """The value of a body that was counted: JSON as RFC 8259 has it. Half characters stay, for their
    item's own error."""
    if len(body) <= PIECE:
        return _loaded(body, Places())
    quotes = yield from _quotes(body)
    known, strings = secrets.token_hex(16), dict[str, str]()
    rest, places, end, work = bytearray(), Places(), 0, 0
    if len(quotes) % 2:  # a string without an end: of that one too, the parser needs no more
        quotes.append(len(body))
    for number, (opening, closing) in enumerate(zip(quotes[::2], quotes[1::2], strict=True)):
        if closing - opening <= LONG:
            continue
        rest += body[end:opening]
        end = closing + 1
        if closing == len(body):
            rest += body[opening : opening + LONG]
            break
        name = f"{known}{number}"
        strings[name] = _loaded(body, Places(opening), body[opening:end])
        rest += f'"{name}"'.encode()
        places.moved(len(rest), end)
        work += closing - opening
        if work > PIECE:
            work = 0
            yield
    rest += body[end:]
    yield
    value = _loaded(body, places, bytes(rest))
    yield
    return _restored(value, strings)


class Places:
    """Where the bytes of what is parsed stood in the body."""

    def __init__(self, begin: int = 0) -> None:
        self._here, self._there = [0], [begin]

    def moved(self, here: int, there: int) -> None:
        """From ``here`` on, and ``there`` in the body."""
        self._here.append(here)
        self._there.append(there)

    def of(self, place: int) -> int:
        number = bisect_right(self._here, place) - 1
        return self._there[number] + place - self._here[number]


def _quotes(body: bytes) -> Generator[None, None, list[int]]:
    """The places of all quotes that begin or end a string."""
    found, escaped = list[int](), False
    for start in range(0, len(body), PIECE):
        masked, escaped = mask(body[start : start + PIECE], escaped)
        place = masked.find(b'"')
        while place >= 0:
            found.append(start + place)
            place = masked.find(b'"', place + 1)
        yield
    return found


def _loaded(body: bytes, places: Places, part: bytes | None = None) -> Any:
    """The value of a part of the body, by default all of it; errors tell places in the body."""
    given = body if part is None else part
    try:
        return json.loads(given.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise too_deep() from None
    except UnicodeDecodeError as error:
        where = f"byte {places.of(error.start)}"
        raise Refusal(400, "not_json", where, "a body is UTF-8", "encode it so") from None
    except json.JSONDecodeError as error:
        said = str(error)
        if part is not None and error.doc:
            place = places.of(len(error.doc[: error.pos].encode()))
            said = f"{error.msg}: {_told(body[:place])}"
        raise _no_json(said) from None
    except ValueError:  # a number's message may have digits, which say nothing
        raise _no_json("a number") from None


def _told(before: bytes) -> str:
    """The place after these bytes, as the json module tells it, where it is not far."""
    if len(before) > TOLD:
        return f"byte {len(before)}"
    line = before[before.rfind(b"\n") + 1 :]
    lines = before.count(b"\n") + 1
    column, char = (len(part.translate(None, _CONTINUED)) for part in (line, before))
    return f"line {lines} column {column + 1} (char {char})"


def _restored(value: Any, strings: dict[str, str]) -> Any:
    if isinstance(value, str):
        return strings.get(value, value)
    if isinstance(value, list):
        return [_restored(part, strings) for part in value]
    if isinstance(value, dict):
        return {strings.get(name, name): _restored(part, strings) for name, part in value.items()}
    return value


def _no_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is no number of JSON", "", 0)


def _no_json(why: str) -> Refusal:
    return Refusal(400, "not_json", "", f"the body is not JSON ({why})")


def _too_many(most: int) -> Refusal:
    return Refusal(
        413,
        "too_many_values",
        "",
        f"a body may have {most} values",
        "split the list into several requests",
        {"Connection": "close"},
    )


def _too_long() -> Refusal:
    return Refusal(
        413,
        "string_too_long",
        "",
        f"a text may have {LARGEST} bytes of UTF-8, and as JSON {LONGEST}",
        "split it into several items",
        {"Connection": "close"},
    )


def too_deep() -> Refusal:
    rule = f"the body is nested deeper than {DEEPEST} levels"
    return Refusal(400, "not_json", "", rule, headers={"Connection": "close"})
