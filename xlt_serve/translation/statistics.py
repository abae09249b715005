"""What translators did, counted: for metrics, and for whoever asks why an answer was plain."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal[
    "translated", "cached", "missing", "failed", "timeout", "nonsense", "resting", "refused"
]


@dataclass(frozen=True, slots=True)
class Event:
    """``texts`` texts of a call (or of the cache) that ended as ``kind`` after ``seconds``."""

    engine: str
    source: str
    target: str
    kind: Kind
    texts: int
    seconds: float = 0.0


Observe: TypeAlias = Callable[[Event], None]


PAIRS = 2000
"""Sums that are kept apart. A client may call a language what it likes: the rest is ``OTHER``."""
OTHER = "other"


class Statistics:
    """Sums of events, a bounded number of them. Written from the translators' thread, read from any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: Counter[tuple[str, str, str, str]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def __call__(self, event: Event) -> None:
        key = (event.engine, event.source, event.target, event.kind)
        with self._lock:
            if key not in self._texts and len(self._texts) >= PAIRS:
                key = (event.engine, OTHER, event.target, event.kind)
            self._texts[key] += event.texts
            self._seconds[event.engine] += event.seconds

    def texts(self, kind: str, engine: str = "") -> int:
        """Texts that ended as ``kind``, with one engine or all."""
        with self._lock:
            return sum(
                count
                for (name, _, _, what), count in self._texts.items()
                if what == kind and engine in ("", name)
            )

    def snapshot(self) -> list[dict[str, Any]]:
        """One row for each engine, pair and kind; seconds are the engine's in all."""
        with self._lock:
            return [
                {
                    "engine": engine,
                    "source": source,
                    "target": target,
                    "kind": kind,
                    "texts": count,
                    "engine_seconds": self._seconds[engine],
                }
                for (engine, source, target, kind), count in sorted(self._texts.items())
            ]
