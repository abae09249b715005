"""Text, or a pair of texts, to ids; it says when it had to cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from xlt_serve.errors import BundleError, ItemError
from xlt_serve.types import Item, Long

LARGEST = 100_000
"""Bytes of UTF-8 that one item may have."""

OVERLAP = 0.25
"""Share of a window that the next one repeats."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one run of the model reads: ids with their special tokens; type_ids tell pair sides apart."""

    ids: list[int]
    type_ids: list[int]

    @property
    def length(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Tokens:
    """``pieces`` has one element, or several windows; ``count`` is that of the whole text."""

    pieces: list[Piece]
    count: int
    truncated: bool


def check(item: object, pair: bool) -> Item:
    """``item`` as a text or a tuple of two, or an ItemError that says what is wrong with it."""
    if isinstance(item, bytes):
        raise ItemError("not_text", repr(item[:20]), "is not valid UTF-8", "decode it first")
    if pair:
        if not isinstance(item, list | tuple) or len(item) != 2:
            raise ItemError(
                "shape",
                _kind(item),
                "this bundle classifies pairs of texts",
                "give two texts for each item",
            )
        first, second = _check_text(item[0]), _check_text(item[1])
        _check_size(first, second)
        return first, second
    if isinstance(item, list | tuple):
        raise ItemError(
            "shape",
            _kind(item),
            "this bundle classifies single texts",
            "give one text for each item",
        )
    text = _check_text(item)
    _check_size(text)
    return text


class Encoder:
    """A tokenizer file and a length limit. Safe to use from several threads."""

    def __init__(self, file: Path, max_length: int) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception on a file it can't read
            raise BundleError(
                file, f"is not a tokenizer file ({error})", "export the bundle again"
            ) from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.max_length = max_length
        self._frames = {sides: _frame(self._tokenizer, sides) for sides in (1, 2)}

    def encode(
        self, items: Sequence[Item], long: Long = "truncate", max_length: int | None = None
    ) -> list[Tokens | ItemError]:
        """One result for each item, in order. Texts over the limit are cut, windowed or refused."""
        limit = min(max_length or self.max_length, self.max_length)
        # All sides in one call, which the library spreads over the cores.
        flat = [text for item in items for text in _sides(item)]
        encoded = self._tokenizer.encode_batch_fast(flat, add_special_tokens=False)
        out: list[Tokens | ItemError] = []
        start = 0
        for item in items:
            end = start + len(_sides(item))
            out.append(self.fit([e.ids for e in encoded[start:end]], limit, long))
            start = end
        return out

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text alone: for texts that stand in many pairs."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [row.ids for row in encoded]

    def fit(self, sides: list[list[int]], limit: int, long: Long) -> Tokens | ItemError:
        """One text or two as what the model reads, within the limit."""
        frame = self._frames[len(sides)]
        count = sum(map(len, sides)) + frame.size
        if not all(sides):
            return ItemError("empty", "no token", "a text needs at least one visible character")
        if count <= limit:
            return Tokens([frame.around(sides)], count, truncated=False)
        room = max(limit - frame.size, len(sides))
        if long == "windows":
            pieces, truncated = _windows(sides, room)
            return Tokens([frame.around(piece) for piece in pieces], count, truncated)
        if long == "error":
            return ItemError(
                "too_long",
                f"{count} tokens",
                f"over the limit of {limit}",
                'shorten it, or ask for long="truncate" or long="windows"',
            )
        kept = shares([len(side) for side in sides], room)
        cut = [side[:keep] for side, keep in zip(sides, kept, strict=True)]
        return Tokens([frame.around(cut)], count, truncated=True)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The special tokens around the sides of an item: ``parts`` before, between and after them, each
    a list of (id, type id); ``types`` are the sides' own type ids."""

    parts: list[list[tuple[int, int]]]
    types: list[int]

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    def around(self, sides: list[list[int]]) -> Piece:
        ids, type_ids = [], []
        for number, part in enumerate(self.parts):
            ids += [token for token, _ in part]
            type_ids += [kind for _, kind in part]
            if number < len(sides):
                ids += sides[number]
                type_ids += [self.types[number]] * len(sides[number])
        return Piece(ids, type_ids)


def _frame(tokenizer: Tokenizer, sides: int) -> _Frame:
    """What the tokenizer's post-processor puts around texts, learnt from one short example.

    Cutting ids and framing them costs what the text is long; the library's own truncation keeps all
    that it cuts off and combines the rests of both sides with each other.
    """
    whole = tokenizer.encode("a", "a" if sides == 2 else None)
    parts: list[list[tuple[int, int]]] = [[]]
    types: list[int] = []
    for token, kind, side in zip(whole.ids, whole.type_ids, whole.sequence_ids, strict=True):
        if side is None:
            parts[-1].append((token, kind))
        elif side == len(types):  # the first token of a side
            types.append(kind)
            parts.append([])
    return _Frame(parts, types)


def _windows(sides: list[list[int]], room: int) -> tuple[list[list[list[int]]], bool]:
    """Overlapping windows over the longer side; the shorter side of a pair stays in each.

    A shorter side that would leave less than half of the room is itself cut to half; the second
    value says so.
    """
    longest = max(range(len(sides)), key=lambda i: len(sides[i]))
    truncated = False
    if len(sides) == 2:
        shorter = sides[1 - longest]
        truncated = len(shorter) > room // 2
        shorter = shorter[: room // 2]
        room -= len(shorter)
    text = sides[longest]
    step = max(1, room - int(room * OVERLAP))
    out = []
    for start in range(0, max(1, len(text) - room + step), step):
        window = text[start : start + room]
        if len(sides) == 1:
            out.append([window])
        else:
            out.append([shorter, window] if longest == 1 else [window, shorter])
    return out, truncated


def _sides(item: Item) -> tuple[str, ...]:
    return item if isinstance(item, tuple) else (item,)


def shares(lengths: list[int], room: int) -> list[int]:
    """How much of each side stays when both have ``room`` together: the longer gives way first."""
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    short, long = sorted(lengths)
    if short + long <= room:
        return lengths
    kept = (short, room - short) if short <= room // 2 else (room // 2, room - room // 2)
    return list(kept if lengths[0] <= lengths[1] else kept[::-1])


def _check_text(text: object) -> str:
    if not isinstance(text, str):
        raise ItemError("not_text", _kind(text), "an item is a text", "give a string")
    if not text.strip():
        raise ItemError("empty", repr(text[:20]), "a text needs at least one visible character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ItemError(
            "not_text",
            ascii(text[error.start : error.start + 1]),
            f"is half a character (a lone surrogate, at {error.start})",
            "send valid Unicode",
        ) from None
    return text


def _check_size(*sides: str) -> None:
    size = sum(len(side.encode()) for side in sides)
    if size > LARGEST:
        raise ItemError(
            "too_large",
            f"{size} bytes",
            f"an item may have {LARGEST} bytes of UTF-8",
            "split it into several items",
        )


def _kind(item: object) -> str:
    if isinstance(item, list | tuple):
        return f"a list of {len(item)}"
    return "null" if item is None else f"{type(item).__name__}"
