"""Who is turned away when work comes faster than it is done.

A request that would wait longer than ``wait`` is refused. That begins an overload. It lasts as long as,
within ``calm`` seconds, more requests are refused than let in. While it lasts, only requests that wait
hardly longer than they run are let in: to let everybody wait for so long would help nobody. A late event
loop counts as waiting, since requests that have not been read yet wait there.
"""

from __future__ import annotations

from dataclasses import dataclass

BRIEF = 0.005
"""Seconds that nobody minds to wait."""

LAG_KNOWN = 0.1
"""Seconds for which the event loop is held to be as late as it was: then a request is let in to see."""


@dataclass(slots=True)
class Overload:
    """Times are the caller's clock, in seconds; so is the lock."""

    wait: float
    calm: float
    _until: float = 0.0
    _let_in: int = 0  # since it was noticed, or seen to go on
    _turned_away: int = 0
    _lag: tuple[float, float] = (0.0, 0.0)  # when the event loop was seen last, and how late

    def lagged(self, now: float, seconds: float) -> None:
        """So late was the event loop just now. The one thing that needs no lock."""
        self._lag = now, seconds

    def let_in(self) -> None:
        self._let_in += 1

    def turns_away(self, now: float, ahead: float, typical: float) -> float | None:
        """For a request with ``ahead`` seconds of work in front of it, where one takes ``typical``
        seconds: None, or how long it would wait, which is too long. Such a one begins the overload, or
        counts towards its going on."""
        lasting = self.lasts(now)
        longest = self.longest(now, typical)
        seen, lag = self._lag
        late = now - seen < LAG_KNOWN and lag > longest
        if not late and ahead <= longest:
            return None
        if not lasting:
            self._let_in = self._turned_away = 0
        if late or not lasting:
            self._until = now + self.calm
        self._turned_away += 1
        return max(ahead, lag if late else 0.0)

    def longest(self, now: float, typical: float) -> float:
        """The seconds that a request may wait now."""
        return min(self.wait, max(BRIEF, typical / 2)) if self.lasts(now) else self.wait

    def lasts(self, now: float) -> bool:
        """Whether work comes much faster than it is done. A few refusals are normal with so
        short a limit, and do not prolong an overload."""
        if now >= self._until:
            lately = now < self._until + self.calm
            if lately and self._turned_away > self._let_in:
                self._until = now + self.calm
            self._let_in = self._turned_away = 0
        return now < self._until
