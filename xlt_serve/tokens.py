"""Text, or a pair of texts, to ids; it says when it had to cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from xlt_serve.errors import BundleError, ItemError
from xlt_serve.schema import Item, Long

LARGEST = 100_000
"""Bytes of UTF-8 that one item may have."""

OVERLAP = 0.25
"""Share of a window that the next one repeats."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one run of the model reads: ids with their special tokens; type_ids tell pair sides apart."""

    ids: list[int]
    type_ids: list[int]


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
            self._whole = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception on a file it can't read
            raise BundleError(
                file, f"is not a tokenizer file ({error})", "export the bundle again"
            ) from None
        self._whole.no_padding()
        self._whole.no_truncation()
        self.max_length = max_length

    def encode(
        self, items: Sequence[Item], long: Long = "truncate", max_length: int | None = None
    ) -> list[Tokens | ItemError]:
        """One result for each item, in order. Texts over the limit are cut, windowed or refused."""
        limit = min(max_length or self.max_length, self.max_length)
        # A lone surrogate can't be tokenised; check() refuses it before it comes here.
        whole = self._whole.encode_batch(list(items))
        out: list[Tokens | ItemError] = []
        for item, encoding in zip(items, whole, strict=True):
            count = len(encoding.ids)
            if count <= limit:
                out.append(Tokens([_piece(encoding)], count, truncated=False))
            elif long == "windows":
                out.append(self._windows(item, count, limit))
            elif long == "error":
                out.append(
                    ItemError(
                        "too_long",
                        f"{count} tokens",
                        f"over the limit of {limit}",
                        'shorten it, or ask for long="truncate" or long="windows"',
                    )
                )
            else:
                out.append(Tokens([self._cut(item, limit)], count, truncated=True))
        return out

    def _cut(self, item: Item, limit: int) -> Piece:
        """The beginning of a text; of a pair, the longer side is cut first."""
        sides = self._bare(item)
        room = self._room(sides, limit)
        for side, keep in zip(sides, shares([len(side) for side in sides], room), strict=True):
            side.truncate(keep)
        return self._finish(sides)

    def _windows(self, item: Item, count: int, limit: int) -> Tokens:
        """Overlapping windows over the longer text; the shorter side of a pair stays in each.

        A shorter side that would leave less than half of the room is itself cut to half.
        """
        sides = self._bare(item)
        room = self._room(sides, limit)
        longest = max(range(len(sides)), key=lambda i: len(sides[i]))
        truncated = False
        if len(sides) == 2:
            shorter = sides[1 - longest]
            if len(shorter) > room // 2:
                shorter.truncate(room // 2)
                truncated = True
            room -= len(shorter)
        sides[longest].truncate(room, stride=int(room * OVERLAP))
        pieces = []
        for window in (sides[longest], *sides[longest].overflowing):
            sides[longest] = window
            pieces.append(self._finish(sides))
        return Tokens(pieces, count, truncated)

    def _bare(self, item: Item) -> list[Encoding]:
        """The sides of an item without special tokens, each free to be cut."""
        texts = item if isinstance(item, tuple) else (item,)
        return [self._whole.encode(text, add_special_tokens=False) for text in texts]

    def _room(self, sides: list[Encoding], limit: int) -> int:
        return max(limit - self._whole.num_special_tokens_to_add(len(sides) == 2), len(sides))

    def _finish(self, sides: list[Encoding]) -> Piece:
        first, second = sides if len(sides) == 2 else (sides[0], None)
        return _piece(self._whole.post_process(first, second))


def shares(lengths: list[int], room: int) -> list[int]:
    """How much of each side stays when both have ``room`` together: the longer gives way first."""
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    short, long = sorted(lengths)
    if short + long <= room:
        return lengths
    kept = (short, room - short) if short <= room // 2 else (room // 2, room - room // 2)
    return list(kept if lengths[0] <= lengths[1] else kept[::-1])


def _piece(encoding: Encoding) -> Piece:
    return Piece(encoding.ids, encoding.type_ids)


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
