"""Rows that wait for a run, and which of them run next. Arithmetic on lengths and times alone."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Generic, TypeVar

OVERHEAD = 10
"""What a run costs beside its tokens, in tokens: each reads the weights and wakes the threads. Measured,
it is 16 (XLM-R-base, int8) to 60 (the small model). By simulation a queue does best with about half of
that, since a row that is left behind may find rows of its own length later."""

WINDOW = 4
"""A batch is chosen among the rows that are due first, this many times a batch's tokens. A search among
all rows would run new rows of a common length before old rows of a rare length. By simulation of 32
clients (XLM-R-base) its p99 is a fifth longer, and it answers only 2 % more texts."""

T = TypeVar("T")


def choose(
    counts: Mapping[int, int], anchor: int, budget: int, overhead: int = OVERHEAD
) -> dict[int, int]:
    """How many rows of each length run together: those around ``anchor``, the length of the row that
    is due first, which is always among them.

    ``counts`` are the rows that wait, by length. Of all batches within ``budget`` padded tokens this
    is the one with the most real tokens for its cost (padded tokens and ``overhead``), among widths
    that pad the anchor to at most twice its length and sixteen tokens. A row over the budget runs
    alone.
    """
    if counts.get(anchor, 0) < 1:
        raise ValueError(f"no row of length {anchor} is waiting")
    if budget < 1:
        raise ValueError(f"budget must be at least 1 token, was: {budget}")
    lengths = sorted(counts, reverse=True)
    best: dict[int, int] = {anchor: 1}
    best_worth = anchor / (anchor + overhead)
    for width in lengths:
        if width < anchor:
            break
        if width > 2 * anchor + 16 or width > budget:
            continue
        found, worth = _filled(counts, lengths, anchor, width, budget // width, overhead)
        if worth >= best_worth:  # the narrower of two equals
            best, best_worth = found, worth
    return best


def _filled(
    counts: Mapping[int, int],
    lengths: list[int],
    anchor: int,
    width: int,
    room: int,
    overhead: int,
) -> tuple[dict[int, int], float]:
    """The best batch of this width: the anchor and then the longest rows, as long as each is worth its
    padding."""
    taken, rows, real = {anchor: 1}, 1, anchor
    for length in lengths:
        if length > width:
            continue
        there = counts[length] - (length == anchor)
        # A row is worth it if length / width is more than what the batch has: real / cost.
        if rows == room or length * (width * rows + overhead) < real * width:
            break
        more = min(there, room - rows)
        if more > 0:
            taken[length] = taken.get(length, 0) + more
            rows, real = rows + more, real + more * length
    return taken, real / (width * rows + overhead)


class Waiting(Generic[T]):
    """The rows of one graph, by client, each with the time at which it is due."""

    def __init__(self) -> None:
        # By time, ties by arrival, which no two rows share: the rows themselves are never compared.
        self._rows: dict[str, list[tuple[float, int, int, T]]] = {}
        self._next = 0
        self._tokens = Counter[str]()  # of each client
        self.tokens = 0

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def push(self, length: int, due: float, row: T, client: str = "") -> None:
        self._next += 1
        insort(self._rows.setdefault(client, []), (due, self._next, length, row))
        self._count(client, length)

    def tokens_of(self, client: str) -> int:
        return self._tokens[client]

    def clients(self) -> Collection[str]:
        return self._rows.keys()

    def _count(self, client: str, tokens: int) -> None:
        self.tokens += tokens
        self._tokens[client] += tokens
        if not self._tokens[client]:
            del self._tokens[client]

    def first(self, used: Mapping[str, float]) -> tuple[float, float, str]:
        """Whose turn it is: the least that any of the clients has had, when that one's first row is
        due, and its name. ``used``: what each has had, see ``fairness``."""
        return min((used.get(name, 0.0), rows[0][0], name) for name, rows in self._rows.items())

    def take(
        self,
        budget: int,
        used: Mapping[str, float] | None = None,
        cost: float = 0.0,
        overhead: int = OVERHEAD,
    ) -> list[T]:
        """The rows of the next run: the first of the client whose turn it is, and those that go well
        with it. ``cost``: seconds that a token takes."""
        counts, tokens = Counter[int](), 0
        seen: list[tuple[str, int, int]] = []
        for client, place, length in self._in_turn(used or {}, cost):
            if tokens >= WINDOW * budget:
                break
            seen.append((client, place, length))
            tokens += length
            counts[length] += 1
        chosen = choose(counts, seen[0][2], budget, overhead)
        taken: dict[str, set[int]] = {}
        out: list[T] = []
        for client, place, length in seen:
            if chosen.get(length, 0):
                chosen[length] -= 1
                out.append(self._rows[client][place][3])
                taken.setdefault(client, set()).add(place)
                self._count(client, -length)
        for client, places in taken.items():
            rows, end = self._rows[client], max(places) + 1
            rows[:end] = [rows[place] for place in range(end) if place not in places]
            if not rows:
                del self._rows[client]
        return out

    def _in_turn(self, used: Mapping[str, float], cost: float) -> Iterator[tuple[str, int, int]]:
        """(client, place among its rows, length) of all rows, in the order in which fair shares would
        run them one by one."""
        heap = [(used.get(name, 0.0), rows[0][0], name, 0) for name, rows in self._rows.items()]
        heapify(heap)
        while heap:
            had, _, client, place = heap[0]
            rows = self._rows[client]
            length = rows[place][2]
            yield client, place, length
            place += 1
            if place < len(rows):
                heapreplace(heap, (had + cost * length, rows[place][0], client, place))
            else:
                heappop(heap)

    def drop(self, unwanted: Callable[[T], bool]) -> int:
        """Take out rows that nobody waits for any more; how many there were."""
        dropped = 0
        for client, rows in list(self._rows.items()):
            left = [entry for entry in rows if not unwanted(entry[3])]
            if len(left) == len(rows):
                continue
            dropped += len(rows) - len(left)
            self._count(client, sum(e[2] for e in left) - self._tokens[client])
            self._rows[client] = left
            if not left:
                del self._rows[client]
        return dropped
