"""Whose turn it is: every client that waits gets the same share of the machine.

A client's virtual time is the work that it has had, in seconds. The rows of the client with the least run
next. One that comes begins at the time of all, so that it neither saves up turns nor pays for the past. That
goes on as fast as a client gets on that has its share: by the work of a run, over the clients among whom it
was shared (as in WF²Q+, Bennett & Zhang 1997). So those who come later stand behind those who wait, however
many come; and a client that asks for little waits for little more than the runs under way, however much the
others have asked for.
"""

from __future__ import annotations

from collections.abc import Collection

MOST = 1000
"""Clients that are remembered, or twice as many as have to be."""


class Shares:
    def __init__(self) -> None:
        self.used: dict[str, float] = {}  # client → its virtual time
        self._now = 0.0  # the virtual time of all when the last run began
        self._since = 0.0  # by how much it goes on with that run
        self._waiting = 1  # clients among whom that is shared
        self._most = MOST

    def comes(self, client: str) -> None:
        """It has rows to run, and none that wait already: what it is owed for those it keeps."""
        self.used[client] = max(self.used.get(client, 0.0), self._now)

    def serves(self, client: str, waiting: Collection[str]) -> None:
        """It is the one whose turn it is, among all that wait."""
        self._now = max(self._now + self._since, self.used.get(client, 0.0))
        self._since, self._waiting = 0.0, max(1, len(waiting))
        if len(self.used) > self._most:
            self._forget(waiting)

    def had(self, client: str, seconds: float) -> None:
        self.used[client] = self.used.get(client, 0.0) + seconds
        self._since += seconds / self._waiting

    def clear(self) -> None:
        """Nobody waits: nobody is ahead or behind."""
        self.used.clear()
        self._now = self._since = 0.0
        self._most = MOST

    def _forget(self, waiting: Collection[str]) -> None:
        """Those who would begin anew at the same time; seldom enough that it costs nothing."""
        self.used = {n: used for n, used in self.used.items() if used > self._now or n in waiting}
        self._most = max(MOST, 2 * len(self.used))
