"""What each graph of a bundle reads and gives. Nothing else knows the names of a graph's inputs.

A graph has one class: the type of its rows, rows → arrays (``feeds``), an example input of any size,
and how its inputs are padded. Serving, export, the gate, the benchmark and the engine builder use it.
A new graph is its class and a line in ``GRAPHS``.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from xlt_serve.runtime.shapes import Dims, Sizes, names, split
from xlt_serve.smoothing.noise import Noise, NoiseSource
from xlt_serve.text.tokens import Piece

Feeds: TypeAlias = dict[str, npt.NDArray[Any]]
"""The inputs of a graph by name."""

EXAMPLE_NOISE = Noise("gaussian", 0.1)


@dataclass(frozen=True, slots=True)
class Stream:
    """The inputs that hold tokens: names of the ids, of their mask and, where the model reads them, of
    the type ids; ``length`` is the name of their second dimension."""

    ids: str
    mask: str
    types: str
    length: str

    def feeds(self, pieces: Sequence[Piece], pad_id: int, typed: bool, padding: int) -> Feeds:
        """All pieces, padded to the longest and ``padding`` columns more."""
        ids, mask = pad([piece.ids for piece in pieces], pad_id, padding)
        out: Feeds = {self.ids: ids, self.mask: mask}
        if typed:
            out[self.types] = pad([piece.type_ids for piece in pieces], 0, padding)[0]
        return out


TEXT = Stream("input_ids", "attention_mask", "token_type_ids", "length")
TRANSLATION = Stream("source_ids", "source_mask", "source_type_ids", "source_length")
ROW, NOISE = "row", "noise"
"""Of the perturbed graph: the text that each draw belongs to, and what is added to it."""

R = TypeVar("R")


class GraphIO(ABC, Generic[R]):
    """The inputs and outputs of one graph file.

    ``dims``: the shape of each input as the file gives it. They tell whether the model reads type
    ids, and how wide its noise is.
    """

    name: ClassVar[str]
    streams: ClassVar[tuple[Stream, ...]]
    logits: ClassVar[tuple[str, ...]]
    """The outputs that hold logits [rows, labels]."""
    texts: ClassVar[str] = "batch"
    """The first dimension of the token inputs."""
    rows: ClassVar[str] = "batch"
    """The first dimension of the outputs."""

    def __init__(self, dims: Dims, pad_id: int) -> None:
        self.dims, self.pad_id = dims, pad_id
        self.typed = self.streams[0].types in dims

    @abstractmethod
    def feeds(self, rows: Sequence[R], padding: int = 0) -> Feeds:
        """The inputs for these rows, padded to the longest.

        ``padding``: so many columns more in every stream, to show that they change no answer.
        """

    @abstractmethod
    def row(self, piece: Piece, noise: Noise | None = None) -> R:
        """The row of one text by itself; for a graph that takes noise, with this noise or without."""

    @abstractmethod
    def example_rows(self, sizes: Sizes, vocabulary: int = 100, ragged: bool = False) -> list[R]:
        """Rows of random ids that fill an input of these sizes; see ``example``."""

    @classmethod
    def inputs(cls, typed: bool) -> dict[str, tuple[int | str, ...]]:
        """The shapes of the inputs in the graph's order, for the exporter to declare."""
        tokens = {n: (cls.texts, s.length) for s in cls.streams for n in (s.ids, s.mask)}
        types = {s.types: (cls.texts, s.length) for s in cls.streams} if typed else {}
        return {**tokens, **types}

    def sizes(self, rows: int, length: int) -> dict[str, int]:
        """Every named dimension: so many rows, each stream of this length."""
        lengths = {stream.length for stream in self.streams}
        return {name: length if name in lengths else rows for name in names(self.dims)}

    def example(self, sizes: Sizes, vocabulary: int = 100, ragged: bool = False) -> Feeds:
        """An input of these sizes, the same in every process: for warm-up, engines, timing, export.

        Ids are random and below ``vocabulary``. All positions are real, the slowest case; ``ragged``:
        each row is shorter than the one before it.
        """
        return self.feeds(self.example_rows(sizes, vocabulary, ragged))

    @classmethod
    def logits_of(cls, outputs: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """[rows, streams, labels]"""
        return np.stack([outputs[name] for name in cls.logits], axis=1)

    def fill(self, name: str, buffer: npt.NDArray[Any], array: npt.NDArray[Any]) -> None:
        """Copy an input into a buffer that is at least as large; the rest becomes padding."""
        buffer[...] = self.pad_id if any(name == stream.ids for stream in self.streams) else 0
        buffer[tuple(slice(length) for length in array.shape)] = array
        if any(name == stream.mask for stream in self.streams):
            # A row that saw nothing would divide by a sum of nothing: it sees its first position.
            buffer[len(array) :, 0] = 1

    def parts(self, feeds: Feeds, most: int) -> list[Feeds]:
        """The same rows in several inputs of at most ``most`` rows each."""
        count = len(next(feeds[name] for name in feeds if self.dims[name][0] == self.rows))
        return [
            {
                name: array[start : start + most] if self.dims[name][0] == self.rows else array
                for name, array in feeds.items()
            }
            for start in range(0, count, most)
        ]


class PlainIO(GraphIO[Piece]):
    """A row is the tokens of a text; the output is ``logits`` (and ``vector``, if exported so)."""

    name = "plain"
    streams = (TEXT,)
    logits = ("logits",)

    def feeds(self, rows: Sequence[Piece], padding: int = 0) -> Feeds:
        return TEXT.feeds(rows, self.pad_id, self.typed, padding)

    def row(self, piece: Piece, noise: Noise | None = None) -> Piece:
        return piece

    def example_rows(
        self, sizes: Sizes, vocabulary: int = 100, ragged: bool = False
    ) -> list[Piece]:
        return random_pieces(sizes[self.texts], sizes[TEXT.length], vocabulary, ragged)


@dataclass(frozen=True, slots=True)
class PerturbedRow:
    """Draw ``number`` of the text whose stream of noise is ``key``; ``noise`` None: the text as it is."""

    piece: Piece
    key: int
    number: int
    noise: Noise | None

    @property
    def length(self) -> int:
        return self.piece.length


class PerturbedIO(GraphIO[PerturbedRow]):
    """A row is a draw; the output is ``logits``. Many draws of many texts share an input: each text
    stands in it once. Noise is drawn here, where the batch is made: a row holds its address only."""

    name = "perturbed"
    streams = (TEXT,)
    logits = ("logits",)
    texts, rows = "texts", "draws"

    def __init__(self, dims: Dims, pad_id: int) -> None:
        super().__init__(dims, pad_id)
        _, *shape = (split(dim) for dim in dims[NOISE])
        self.width = shape[-1][1]
        # Positions of soft prompts; None: the noise has no positions at all.
        self.extra = shape[0][1] if len(shape) == 2 else None

    @classmethod
    def inputs(
        cls, typed: bool, width: int = 0, extra: int | None = None
    ) -> dict[str, tuple[int | str, ...]]:
        """``width``: of the embeddings; ``extra``: positions of soft prompts, None for noise at the
        encoder's output, which has no positions."""
        position = f"{TEXT.length} + {extra}" if extra else TEXT.length
        places: tuple[int | str, ...] = () if extra is None else (position,)
        tokens = super().inputs(typed)
        types = {TEXT.types: tokens.pop(TEXT.types)} if typed else {}
        return {**tokens, ROW: (cls.rows,), NOISE: (cls.rows, *places, width), **types}

    def feeds(self, rows: Sequence[PerturbedRow], padding: int = 0) -> Feeds:
        pieces = {id(row.piece): row.piece for row in rows}
        places = {piece: place for place, piece in enumerate(pieces)}
        out = TEXT.feeds(list(pieces.values()), self.pad_id, self.typed, padding)
        out[ROW] = np.array([places[id(row.piece)] for row in rows], dtype=np.int64)
        out[NOISE] = self.noise(rows, out[TEXT.ids].shape[1])
        return out

    def noise(self, rows: Sequence[PerturbedRow], longest: int) -> npt.NDArray[np.float32]:
        """[rows, longest + prompts, width], 0 at padding; [rows, width] at the encoder's output."""
        source = NoiseSource()
        positions = () if self.extra is None else (longest + self.extra,)
        out = np.zeros((len(rows), *positions, self.width), dtype=np.float32)
        for place, row in zip(out, rows, strict=True):
            if row.noise is not None:
                real = place if self.extra is None else place[: row.length + self.extra]
                source.fill(row.key, row.number, row.noise, real)
        return out

    def row(self, piece: Piece, noise: Noise | None = None) -> PerturbedRow:
        return PerturbedRow(piece, zlib.crc32(repr(piece.ids).encode()), 0, noise)

    def example_rows(
        self, sizes: Sizes, vocabulary: int = 100, ragged: bool = False
    ) -> list[PerturbedRow]:
        pieces = random_pieces(sizes[self.texts], sizes[TEXT.length], vocabulary, ragged)
        return [
            PerturbedRow(pieces[number % len(pieces)], 0, number, EXAMPLE_NOISE)
            for number in range(sizes[self.rows])
        ]

    def parts(self, feeds: Feeds, most: int) -> list[Feeds]:
        """Draws are what it is split by; a part holds only the texts that its draws belong to."""
        out = []
        for part in super().parts(feeds, most):
            used, row = np.unique(part[ROW], return_inverse=True)
            texts = {n: a[used] for n, a in part.items() if self.dims[n][0] == self.texts}
            out.append(part | texts | {ROW: row.astype(np.int64)})
        return out


@dataclass(frozen=True, slots=True)
class PairedRow:
    """``target`` is the text as it came, ``source`` its translation."""

    target: Piece
    source: Piece

    @property
    def length(self) -> int:
        return self.target.length + self.source.length


class PairedIO(GraphIO[PairedRow]):
    """A row is a text and its translation; the outputs are both streams' logits and ``ratio``, λ."""

    name = "paired"
    streams = (TEXT, TRANSLATION)
    logits = ("target_logits", "source_logits")

    def feeds(self, rows: Sequence[PairedRow], padding: int = 0) -> Feeds:
        targets, sources = [row.target for row in rows], [row.source for row in rows]
        return {
            **TEXT.feeds(targets, self.pad_id, self.typed, padding),
            **TRANSLATION.feeds(sources, self.pad_id, self.typed, padding),
        }

    def row(self, piece: Piece, noise: Noise | None = None) -> PairedRow:
        """The text as its own translation."""
        return PairedRow(piece, piece)

    def example_rows(
        self, sizes: Sizes, vocabulary: int = 100, ragged: bool = False
    ) -> list[PairedRow]:
        sides = (
            random_pieces(sizes[self.texts], sizes[stream.length], vocabulary, ragged)
            for stream in self.streams
        )
        return [PairedRow(*pair) for pair in zip(*sides, strict=True)]


GRAPHS: dict[str, type[GraphIO[Any]]] = {
    "plain": PlainIO,
    "perturbed": PerturbedIO,
    "paired": PairedIO,
}


def pad(
    rows: Sequence[Sequence[int]], value: int, padding: int = 0
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """ids [rows, longest + padding] filled up with ``value``, and their mask: 1 for real ones."""
    longest = max(len(row) for row in rows) + padding
    ids = np.full((len(rows), longest), value, dtype=np.int64)
    mask = np.zeros((len(rows), longest), dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return ids, mask


def random_pieces(count: int, length: int, vocabulary: int, ragged: bool) -> list[Piece]:
    """Pieces of ``length`` random ids, none of them special; ``ragged``: all but the first shorter.
    The second half of each is the second text of a pair."""
    generator = np.random.default_rng([count, length])
    out = []
    for number in range(count):
        size = max(1, length - number * length // count) if ragged else length
        ids = generator.integers(5, vocabulary, size).tolist()
        out.append(Piece(ids, [int(2 * place >= size) for place in range(size)]))
    return out
