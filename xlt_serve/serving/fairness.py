"""Whose turn it is: every client that waits gets the same share of the machine.

Start-time fair queueing (Goyal, Vin & Cheng 1997). A client's virtual time is the work that it has had,
in seconds; one that comes begins where the others stand, so that it neither saves up turns nor pays for
the past. The rows of the client with the least virtual time run next. So a client that asks for little
waits for the runs under way, however much the others have asked for.
"""

from __future__ import annotations

MOST = 1000
"""Clients that are remembered, beside those that are ahead of the others."""


class Shares:
    def __init__(self) -> None:
        self.used: dict[str, float] = {}  # client → its virtual time
        self._now = 0.0  # virtual time of the client that was served last

    def comes(self, client: str) -> None:
        """It has rows to run. Of one whose rows wait already, nothing changes: it is never behind."""
        if len(self.used) > MOST:
            self.used = {name: used for name, used in self.used.items() if used >= self._now}
        self.used[client] = max(self.used.get(client, 0.0), self._now)

    def serves(self, client: str) -> None:
        """It is the one whose turn it is."""
        self._now = max(self._now, self.used.get(client, 0.0))

    def had(self, client: str, seconds: float) -> None:
        self.used[client] = self.used.get(client, 0.0) + seconds

    def clear(self) -> None:
        """Nobody waits: nobody is ahead or behind."""
        self.used.clear()
        self._now = 0.0
