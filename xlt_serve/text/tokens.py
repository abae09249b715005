"""Text, or a pair of texts, to ids; it says when it had to cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from tokenizers import Tokenizer

from xlt_serve.errors import BundleError, ItemError, TooMuch, first_line
from xlt_serve.text import patterns
from xlt_serve.types import Item, Long

LARGEST = 100_000
"""Bytes of UTF-8 that one item may have."""

AT_ONCE = 250_000
"""Characters that are tokenised together: a token takes the library a hundred bytes until it is cut."""

SAMPLE = "a"
"""A text of which every tokenizer makes a token."""

NOBODYS = "\U0010ffff"
"""A character that no vocabulary has."""

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
    """A tokenizer file and a length limit. Safe to use from several threads.

    ``trust``: take regular expressions that no known tokenizer has; None: as the environment says."""

    def __init__(self, file: Path, max_length: int, trust: bool | None = None) -> None:
        patterns.check(file, trust)
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
        parts = (part for frame in self._frames.values() for part in frame.parts)
        self._around = {token for part in parts for token, _ in part}

    def encode(
        self,
        items: Sequence[Item],
        long: Long = "truncate",
        max_length: int | None = None,
        most: int | None = None,
    ) -> list[Tokens | ItemError]:
        """One result for each item, in order. Texts over the limit are cut, windowed or refused.
        ``TooMuch`` where all would have over ``most`` windows."""
        limit = self.limit(max_length)
        encoded = self._ids([text for item in items for text in _sides(item)])
        out, windows = list[Tokens | ItemError](), 0
        for item in items:
            out.append(self._fitted([next(encoded) for _ in _sides(item)], limit, long, most))
            windows += len(out[-1].pieces) if isinstance(out[-1], Tokens) else 0
            if most is not None and windows > most:
                raise too_many_windows(windows, most)
        return out

    def limit(self, max_length: int | None) -> int:
        """Tokens that are read of a text where so many are asked for."""
        return min(max_length or self.max_length, self.max_length)

    def special(self, sides: int) -> int:
        """Pieces around a text, or around two."""
        return self._frames[sides].size

    def ids(self, texts: Sequence[str]) -> list[list[int] | ItemError]:
        """The tokens of each text alone: for texts that stand in many pairs."""
        return list(self._ids(texts))

    def unknown_share(self, pieces: Iterable[Sequence[int]]) -> float:
        """The share of these tokens that stand for what the vocabulary does not have."""
        ids = [token for piece in pieces for token in piece if token not in self._around]
        unknown = self.unknown
        return ids.count(unknown) / len(ids) if ids and unknown is not None else 0.0

    @cached_property
    def unknown(self) -> int | None:
        """The piece that stands for what the vocabulary lacks; None where there is none, as in
        vocabularies of bytes."""
        try:
            found = _guarded(lambda: self._tokenizer.model.tokenize(NOBODYS))
        except Exception:  # the library raises bare Exception where a model has no such token
            return None
        return found[0].id if len(found) == 1 else None

    def _ids(self, texts: Sequence[str]) -> Iterator[list[int] | ItemError]:
        """Many texts in one call, which the library spreads over the cores, but not all of them."""
        for start, end in _slices([len(text) for text in texts]):
            try:
                yield from self._encoded(texts[start:end])
            except Panic:
                for text in texts[start:end]:
                    yield from self._alone(text)

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = _guarded(
            lambda: self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        )
        return [row.ids for row in encoded]

    def _alone(self, text: str) -> list[list[int] | ItemError]:
        try:
            return [*self._encoded([text])]
        except Panic as error:
            rule = f"the tokenizer fails on it ({first_line(error)})"
            return [ItemError("not_tokenised", f"{len(text)} characters", rule, "reword the text")]

    def _fitted(
        self, sides: Sequence[list[int] | ItemError], limit: int, long: Long, most: int | None
    ) -> Tokens | ItemError:
        read: list[list[int]] = []
        for side in sides:
            if isinstance(side, ItemError):
                return side
            read.append(side)
        return self.fit(read, limit, long, most)

    def fit(
        self, sides: list[list[int]], limit: int, long: Long, most: int | None = None
    ) -> Tokens | ItemError:
        """One text or two as what the model reads, within the limit."""
        frame = self._frames[len(sides)]
        count = sum(map(len, sides)) + frame.size
        if not all(sides):
            return ItemError("empty", "no token", "a text needs at least one visible character")
        if count <= limit:
            return Tokens([frame.around(sides)], count, truncated=False)
        room = max(limit - frame.size, len(sides))
        if long == "windows":
            pieces, truncated = _windows(sides, room, most)
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


T = TypeVar("T")


class Panic(Exception):
    """The tokenizers library failed as it does not expect to: on a regular expression that gives up."""


def _guarded(call: Callable[[], T]) -> T:
    """A panic of Rust is no Exception, and would pass every handler of ours."""
    try:
        return call()
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Panic(first_line(error)) from None


def _slices(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(start, end) of runs of at most ``AT_ONCE`` in all, or of one."""
    start, held = 0, 0
    for number, size in enumerate(sizes):
        if held + size > AT_ONCE and number > start:
            yield start, number
            start, held = number, 0
        held += size
    if start < len(sizes):
        yield start, len(sizes)


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
    try:
        whole = _guarded(lambda: tokenizer.encode(SAMPLE, SAMPLE if sides == 2 else None))
    except Panic as error:
        raise BundleError(
            "the tokenizer", f"fails on {SAMPLE!r} ({error})", "export the bundle again"
        ) from None
    parts: list[list[tuple[int, int]]] = [[]]
    types: list[int] = []
    for token, kind, side in zip(whole.ids, whole.type_ids, whole.sequence_ids, strict=True):
        if side is None:
            parts[-1].append((token, kind))
        elif side == len(types):  # the first token of a side
            types.append(kind)
            parts.append([])
    if len(types) < sides:
        raise BundleError(
            "the tokenizer", f"makes no token of {SAMPLE!r}", "export the bundle again"
        )
    return _Frame(parts, types)


def too_many_windows(found: int, most: int) -> TooMuch:
    return TooMuch(
        f"{found} windows",
        f"a request may be read in {most}",
        "split the list, cut the texts, or send long=truncate",
    )


def _windows(
    sides: list[list[int]], room: int, most: int | None
) -> tuple[list[list[list[int]]], bool]:
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
    out, starts = [], range(0, max(1, len(text) - room + step), step)
    if most is not None and len(starts) > most:  # a short window makes a million pieces of a few MB
        raise too_many_windows(len(starts), most)
    for start in starts:
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
