"""Which of the input's columns are written."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """``keep``: these alone, or all; but for those in ``drop``."""

    keep: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        return name not in self.drop and (self.keep is None or name in self.keep)

    def unknown(self, names: Collection[str]) -> list[str]:
        """Chosen columns that there are not."""
        return [name for name in (*(self.keep or ()), *self.drop) if name not in names]


ALL = Choice()
