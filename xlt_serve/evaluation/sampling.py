"""Which texts to label: those that the classifier is least sure of, and some by chance."""

from __future__ import annotations

import csv
import hashlib
import heapq
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

from xlt_serve.errors import UsageError
from xlt_serve.files.labelled import Columns, Stated

DRAWN, RANDOM, UNSURE = "xlt_drawn", "random", "unsure"
"""A column of what is written, and its values."""
ROW = "xlt_row"
"""The number of a text's row in the file that it comes from."""


def key(item: str | tuple[str, str], seed: int = 0) -> bytes:
    """The same for the same text, else as if drawn: those with the smallest keys are a random sample of
    all different texts, however often and in which order they come."""
    sides = (item,) if isinstance(item, str) else item
    digest = hashlib.blake2b(f"{seed}".encode(), digest_size=12)
    for side in sides:
        digest.update(b"\0" + side.strip().encode("utf-8", "surrogatepass"))
    return digest.digest()


class Smallest:
    """The ``count`` texts of the lowest priority that were seen, each once."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._heap: list[tuple[float, int, bytes]] = []
        self._rows: dict[bytes, Stated] = {}

    def add(self, priority: float, name: bytes, row: Stated) -> None:
        if name in self._rows:
            return
        entry = (-priority, -int.from_bytes(name), name)
        if len(self._heap) < self._count:
            heapq.heappush(self._heap, entry)
        elif entry > self._heap[0]:
            del self._rows[heapq.heapreplace(self._heap, entry)[2]]
        else:
            return
        self._rows[name] = row

    def in_order(self) -> list[tuple[bytes, Stated]]:
        return [(name, self._rows[name]) for _, _, name in sorted(self._heap, reverse=True)]


@dataclass
class LabelCandidates:
    """Texts of one language that may be labelled: as many of each kind as may be asked for."""

    count: int
    seed: int
    by_chance: Smallest = field(init=False)
    least_sure: Smallest = field(init=False)

    def __post_init__(self) -> None:
        self.by_chance, self.least_sure = Smallest(self.count), Smallest(self.count)

    def add(self, margin: float, row: Stated) -> None:
        """``margin``: by how much the first label is likelier than the second."""
        name = key(row.row.item, self.seed)
        self.by_chance.add(0.0, name, row)
        self.least_sure.add(margin, name, row)

    def drawn(self, without: set[bytes]) -> list[tuple[str, Stated]]:
        """Half by chance from all, half the least sure of the others; in random order, so that who labels
        can't tell them apart. ``without``: keys of texts whose labels are known."""
        some = [(name, row) for name, row in self.by_chance.in_order() if name not in without]
        some = some[: self.count - self.count // 2]
        taken = without | {name for name, _ in some}
        others = [(name, row) for name, row in self.least_sure.in_order() if name not in taken]
        others = others[: self.count - len(some)]
        mixed = [(n, RANDOM, row) for n, row in some] + [(n, UNSURE, row) for n, row in others]
        return [(kind, row) for _, kind, row in sorted(mixed, key=lambda each: each[0][::-1])]


def header(columns: Columns) -> list[str]:
    """Of what is written: the names of the columns that the texts had."""
    pair = [columns.pair] if columns.pair else []
    text, label = columns.text, columns.label or "label"
    names = [columns.id or ROW, text, *pair, columns.language or "language", label, DRAWN]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(twice[0], "names two columns of the sample", "name columns that differ")
    return names


def table(drawn: Sequence[tuple[str, Stated]], columns: Columns, language: str) -> bytes:
    """CSV, the labels empty. The answers of the classifier are not in it: who sees them agrees with them
    too often."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(header(columns))
    for kind, stated in drawn:
        row = stated.row
        name = row.id if columns.id else str(stated.number)
        pair = [row.pair] if columns.pair else []
        writer.writerow([name, row.text, *pair, language, "", kind])
    return sink.getvalue().encode()
