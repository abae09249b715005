"""A worker's connections: how many there may be, which of them wait, and a look at each in turn.

Where all places are taken, a new one gets that of another that waits for something of its client: for the
next request, for room to send the answer, or for the rest of a request. So those who only hold connections
drive each other out. An address that holds more than its share does so at its own cost first, and drives
out nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Protocol

from xlt_serve.serving import clients
from xlt_serve.serving.settings import Environment

RESERVE = 16
"""Connections beyond the most: their requests are read, but only probes are answered."""

ROOM = 128
"""File descriptors that are left for everything else: graphs, logs, metrics, the workers' state."""

TICK = 0.25
"""Seconds between two looks at every connection; one timer for all is cheaper than one for each."""


SHARE = 1 / 8
"""Of the places: what one address may hold of them while others want some."""


class Connection(Protocol):
    def evict(self) -> None:
        """End it at once: another needs its place."""

    def abort(self) -> None:
        """End it, whatever state it is in."""

    def look(self, now: float) -> None:
        """End it if something has taken too long."""


class Connections:
    def __init__(self, environment: Environment, loop: asyncio.AbstractEventLoop) -> None:
        self.most = allowed(environment.max_connections)
        self._loop, self._looking = loop, False
        shortest = min(
            environment.header_timeout,
            environment.idle_timeout,
            environment.write_timeout,
            environment.drain_timeout,
        )
        self._tick = min(TICK, shortest / 4)
        self._proxies = environment.proxies
        self._open: dict[Connection, str] = {}  # → whose it is
        self._held: Counter[str] = Counter()
        # In the order in which they began to wait: for a request, for the client to take in an answer,
        # for the rest of a request.
        self._idle: dict[Connection, None] = {}
        self._unread: dict[Connection, None] = {}
        self._coming: dict[Connection, None] = {}

    def enter(self, connection: Connection, peer: str) -> bool | None:
        """True: it has a place, if need be that of one that waits. False: it has one of the reserve.
        None: it has no place."""
        owner = clients.owner(peer, self._proxies)
        while len(self._open) >= self.most and (victim := self._victim(owner)) is not None:
            self.leave(victim)
            victim.evict()
        free = len(self._open) < self.most
        if not free and len(self._open) >= self.most + RESERVE:
            return None
        self._open[connection] = owner
        if owner:
            self._held[owner] += 1
        if not self._looking:
            self._looking = True
            self._loop.call_later(self._tick, self._look)
        return free

    def leave(self, connection: Connection) -> None:
        if connection not in self._open:
            return
        self.busy(connection)
        owner = self._open.pop(connection)
        self._held[owner] -= 1
        if self._held[owner] <= 0:
            del self._held[owner]

    def idle(self, connection: Connection) -> None:
        """It waits for a request, or for the end of one that was answered: the first to go."""
        self._coming.pop(connection, None)
        self._unread.pop(connection, None)
        if connection in self._open:
            self._idle.setdefault(connection)

    def comes(self, connection: Connection) -> None:
        """A request has begun and not ended. That of somebody who begins many and ends none is older
        than that of somebody who sends it as fast as it goes."""
        self._idle.pop(connection, None)
        self._unread.pop(connection, None)
        if connection in self._open:
            self._coming.setdefault(connection)

    def busy(self, connection: Connection) -> None:
        """A request is being answered: it keeps its place."""
        self._idle.pop(connection, None)
        self._unread.pop(connection, None)
        self._coming.pop(connection, None)

    def unread(self, connection: Connection) -> None:
        """Its client does not take in the answer: one that waits otherwise does so as before."""
        if connection not in self._open or connection in self._idle or connection in self._coming:
            return
        self._unread.setdefault(connection)

    def read(self, connection: Connection) -> None:
        """Its client takes in the answer."""
        self._unread.pop(connection, None)

    def _victim(self, newcomer: str) -> Connection | None:
        """The one to make room: of those over their share that of the greediest, else of all, but not
        for one over its share."""
        share = max(1, self.most * SHARE)
        over = {owner: count for owner, count in self._held.items() if count > share}
        for greedy in sorted(over, key=over.__getitem__, reverse=True):
            own = (one for one in self._waiting() if self._open[one] == greedy)
            if (found := next(own, None)) is not None:
                return found
        return None if newcomer in over else next(self._waiting(), None)

    def _waiting(self) -> Iterator[Connection]:
        return chain(self._idle, self._unread, self._coming)

    def _look(self) -> None:
        now = self._loop.time()
        for connection in list(self._open):
            try:
                connection.look(now)
            except Exception as error:  # the others must be looked at, now and later
                self._fail(connection, error)
        self._looking = bool(self._open)
        if self._looking:
            self._loop.call_later(self._tick, self._look)

    def _fail(self, connection: Connection, error: Exception) -> None:
        """Nothing bounds its time any more, so it ends; asyncio logs why."""
        told = "a connection could not be looked at"
        self._loop.call_exception_handler({"message": told, "exception": error})
        self.leave(connection)
        try:
            connection.evict()
        except Exception:
            with contextlib.suppress(Exception):
                connection.abort()


def allowed(wanted: int) -> int:
    """``wanted`` connections, or as many as the process may have file descriptors for."""
    if sys.platform == "win32":
        return wanted
    import resource

    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, descriptors - RESERVE - min(ROOM, descriptors // 2)))
