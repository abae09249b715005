"""The bytes of requests that a worker holds at once, bounded.

Where there would be more, a body of the client who holds most is given up: the one that has been coming
for longest. And one client has a share: its bodies that are whole can't be given up, and must leave room
for those of others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

FREE = 64 * 1024
"""Bytes of each body that don't count: there are at most as many as connections."""

SHARE = 0.25
"""Of all bytes, for one client with several bodies. As admission lets in a few large requests of a client
at a time, more would be held for nothing."""


class Held:
    """The body of one request. ``timeout``: ends the reading of it; None: all of it is here."""

    def __init__(self, timeout: asyncio.Timeout, client: str = "") -> None:
        self.timeout: asyncio.Timeout | None = timeout
        self.client, self.given_up = client, False
        self.came = 0  # bytes of it
        self.body = bytearray()


class HeldBodies:
    def __init__(self, most: int) -> None:
        self.most = most
        self._open: dict[Held, int] = {}  # in the order in which they began to come
        self.bytes = 0

    def add(self, held: Held, data: bytes) -> None:
        """More of a body; it may be the one that is given up for it."""
        held.body += data
        held.came = len(held.body)
        self.hold(held, len(held.body))

    def hold(self, held: Held, size: int) -> None:
        """So large is it by now: as bytes, then as what they became."""
        self.bytes -= self._open.get(held, 0)
        self._open[held] = max(0, size - FREE)
        self.bytes += self._open[held]
        if not self._open[held]:
            del self._open[held]
        while self.bytes > self.most:
            self._give_up(self._greediest(), held)
        if self._greedy(held.client):
            self._give_up([held.client], held)

    def leave(self, held: Held) -> None:
        """Its request is answered."""
        self.bytes -= self._open.pop(held, 0)

    def _greedy(self, client: str) -> bool:
        sizes = [max(0, held.came - FREE) for held in self._open if held.client == client]
        return len(sizes) > 1 and sum(sizes) > SHARE * self.most

    def _greediest(self) -> list[str]:
        """All who hold bodies, who holds most first."""
        sums = Counter[str]()
        for held, size in self._open.items():
            sums[held.client] += size
        return [client for client, _ in sums.most_common()]

    def _give_up(self, clients: list[str], newest: Held) -> None:
        """The first that still comes of the first of these clients that has one, else the newest."""
        coming = [each for each in self._open if each.timeout is not None]
        found = (each for client in clients for each in coming if each.client == client)
        held = next(found, newest)
        held.given_up = True
        held.body.clear()
        self.leave(held)
        with contextlib.suppress(RuntimeError):  # it is ending already
            if held.timeout is not None:
                held.timeout.reschedule(0)
