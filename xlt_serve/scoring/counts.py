"""What was done so far, and the line that says so."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TextIO

from xlt_serve.types import Prediction

SHOWN = 5
"""Languages that a line has room for."""


@dataclass(slots=True)
class Counts:
    rows: int = 0
    errors: int = 0
    abstained: int = 0
    truncated: int = 0
    tokens: int = 0
    languages: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        self.rows += other.rows
        self.errors += other.errors
        self.abstained += other.abstained
        self.truncated += other.truncated
        self.tokens += other.tokens
        self.languages += other.languages

    def to_dict(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in ("rows", "errors", "abstained", "truncated")}
        return found | {"tokens": self.tokens, "languages": dict(self.languages.most_common())}

    @classmethod
    def of(cls, values: dict[str, Any]) -> Counts:
        return cls(**{**values, "languages": Counter(values["languages"])})


def count(predictions: Iterable[Prediction]) -> Counts:
    out = Counts()
    for prediction in predictions:
        out.rows += 1
        out.errors += prediction.error is not None
        out.abstained += prediction.abstained is not None
        out.truncated += prediction.truncated
        out.tokens += prediction.tokens
        if prediction.error is None:
            spoken = prediction.language or "?"
            out.languages[spoken if isinstance(spoken, str) else "-".join(spoken)] += 1
    return out


def line(done: Counts, fresh: Counts, seconds: float, left: float | None) -> str:
    """``fresh``: what this process did, in ``seconds``, which is what its speed is measured by;
    ``left``: seconds until the end, where one can tell."""
    rate = 1 / seconds if seconds > 0 else 0.0
    parts = [
        f"{done.rows:,} rows",
        f"{_short(fresh.rows * rate)} rows/s",
        f"{_short(fresh.tokens * rate)} tokens/s",
    ]
    if left is not None:
        parts.append(f"ETA {_clock(left)}")
    if done.errors:
        parts.append(f"{done.errors:,} errors")
    if done.languages:
        parts.append(languages(done.languages))
    return " · ".join(parts)


def languages(found: Counter[str], most: int = SHOWN) -> str:
    shown = sorted(found.items(), key=lambda entry: (-entry[1], entry[0]))
    more = f" +{len(shown) - most}" if len(shown) > most else ""
    return " ".join(f"{name} {number:,}" for name, number in shown[:most]) + more


def bar(share: float, width: int = 20) -> str:
    full = int(share * width * 8)
    return ("█" * (full // 8) + " ▏▎▍▌▋▊▉"[full % 8]).ljust(width)[:width]


class Progress:
    """On a terminal one line that is written over; elsewhere a line a minute."""

    def __init__(
        self,
        done: Counts,
        stream: TextIO | None = None,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.done, self.fresh = done, Counts()
        self._stream = stream or sys.stderr
        self._quiet, self._clock = quiet, clock
        self._live = self._stream.isatty()
        self._began = self._shown = clock()
        self._share = 0.0
        # Since when, and from which share on, this process has been working: None until it shows.
        self._from: tuple[float, float] | None = None if done.rows else (self._began, 0.0)

    def start(self) -> None:
        """Loading is over: speeds count from now on."""
        self._began = self._clock()
        if self._from is not None:
            self._from = (self._began, 0.0)

    def update(self, new: Counts, share: float) -> None:
        """``share`` of the input that is done, 0 where nobody knows."""
        now = self._clock()
        self._from = self._from or (now, share)  # what was there before says nothing on the speed
        self._share = share
        self.done.add(new)
        self.fresh.add(new)
        if not self._quiet and now - self._shown >= (0.2 if self._live else 60):
            self._shown = now
            self._show(now)

    def finish(self) -> str:
        """The last line, for whoever wants to print it."""
        if self._live and not self._quiet:
            self._stream.write("\r\x1b[K")
        return line(self.done, self.fresh, self._clock() - self._began, None)

    def _show(self, now: float) -> None:
        begun, first = self._from or (now, self._share)
        gained = self._share - first
        left = (now - begun) * (1 - self._share) / gained if gained > 0 else None
        said = line(self.done, self.fresh, now - self._began, left)
        if self._live:
            said = f"\r{bar(self._share)} {self._share:4.0%} {said}\x1b[K"
            print(said, end="", file=self._stream, flush=True)
        else:
            print(f"{self._share:4.0%} {said}", file=self._stream, flush=True)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
