"""An engine that fails again and again is left alone for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Breaker:
    """After ``failures`` in a row it is open for ``rest`` seconds; then one call may try."""

    failures: int = 3
    rest: float = 30.0
    clock: Callable[[], float] = time.monotonic
    _row: int = field(default=0, init=False)
    _until: float = field(default=0.0, init=False)

    def lets_through(self) -> bool:
        if self._row < self.failures:
            return True
        if self.clock() < self._until:
            return False
        self._until = self.clock() + self.rest  # this call tries; the others go on waiting
        return True

    def worked(self) -> None:
        self._row = 0

    def failed(self) -> None:
        self._row += 1
        self._until = self.clock() + self.rest
