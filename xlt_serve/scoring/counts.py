"""What was done so far, and the line that says so."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

SHOWN = 5
"""Languages that a line has room for."""
LIVE, LOGGED = 0.2, 10.0
"""Seconds between two lines, on a terminal and elsewhere."""


@dataclass(slots=True)
class Counts:
    """``kinds``: errors by their code; ``fell_back``: why texts that should have been read with their
    translation were read without it."""

    rows: int = 0
    errors: int = 0
    abstained: int = 0
    truncated: int = 0
    tokens: int = 0
    languages: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    fell_back: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        self.rows += other.rows
        self.errors += other.errors
        self.abstained += other.abstained
        self.truncated += other.truncated
        self.tokens += other.tokens
        self.languages += other.languages
        self.kinds += other.kinds
        self.fell_back += other.fell_back

    def to_dict(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in ("rows", "errors", "abstained", "truncated")}
        counters = {name: dict(getattr(self, name).most_common()) for name in COUNTERS}
        return found | {"tokens": self.tokens} | counters

    @classmethod
    def of(cls, values: dict[str, Any]) -> Counts:
        """Also of what earlier versions wrote, who counted less."""
        return cls(**{**values, **{name: Counter(values.get(name, {})) for name in COUNTERS}})


COUNTERS = ("languages", "kinds", "fell_back")


def count(answers: Iterable[Mapping[str, Any]]) -> Counts:
    """Of answers, also of such as were read from a file in which all are texts."""
    out = Counts()
    for answer in answers:
        out.rows += 1
        out.abstained += bool(answer.get("abstained"))
        out.truncated += answer.get("truncated") in (True, "true")
        out.tokens += int(answer.get("tokens") or 0)
        if error := answer.get("error"):
            out.errors += 1
            out.kinds[_code(error)] += 1
        else:
            spoken = answer.get("language") or "?"
            out.languages[spoken if isinstance(spoken, str) else "-".join(spoken)] += 1
            if reason := answer.get("reason"):
                out.fell_back[_code(reason)] += 1
    return out


def _code(failure: Any) -> str:
    """Of an error as JSON has it, or as text: ``code: message``."""
    return str(failure["code"]) if isinstance(failure, Mapping) else str(failure).partition(":")[0]


def details(done: Counts) -> list[str]:
    """What a summary says beyond the line of the progress."""
    parts = []
    if done.kinds:
        parts.append("errors: " + languages(done.kinds))
    if done.fell_back:
        parts.append(f"{done.fell_back.total():,} without translation: {languages(done.fell_back)}")
    if done.abstained:
        parts.append(f"{done.abstained:,} abstained")
    if done.truncated:
        parts.append(f"{done.truncated:,} truncated")
    return parts


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
    """On a terminal one line that is written over; elsewhere a line every few seconds."""

    def __init__(
        self,
        done: Counts,
        stream: TextIO | None = None,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.done, self.fresh = done, Counts()
        self._ahead = Counts()
        self._stream = stream or sys.stderr
        self._quiet, self._clock = quiet, clock
        self._live = self._stream.isatty()
        self._began = self._shown = clock()
        self._share = 0.0
        # Since when, and from which share on, this process has been working: None until it shows.
        self._from: tuple[float, float] | None = None if done.rows else (self._began, 0.0)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Loading is over: speeds count from now on."""
        self._began = self._clock()
        if self._from is not None:
            self._from = (self._began, 0.0)

    def answered(self, ahead: Counts, rows: int, tokens: int) -> None:
        """By any thread: a part of a window, which counts for sure once the window is written;
        ``ahead`` is what that window adds to for now."""
        with self._lock:
            for counts in (ahead, self._ahead):
                counts.rows += rows
                counts.tokens += tokens
            self._due(self._clock())

    def update(self, new: Counts, share: float, ahead: Counts | None = None) -> None:
        """``share`` of the input that is done, 0 where nobody knows."""
        with self._lock:
            now = self._clock()
            self._from = self._from or (
                now,
                share,
            )  # what was there before says nothing on the speed
            self._share = share
            self.done.add(new)
            self.fresh.add(new)
            if ahead is not None:
                self._ahead.rows -= ahead.rows
                self._ahead.tokens -= ahead.tokens
            self._due(now)

    def finish(self) -> str:
        """The last line, for whoever wants to print it."""
        if self._live and not self._quiet:
            self._stream.write("\r\x1b[K")
        said = line(self.done, self.fresh, self._clock() - self._began, None)
        return " · ".join([said, *details(self.done)])

    def _due(self, now: float) -> None:
        if not self._quiet and now - self._shown >= (LIVE if self._live else LOGGED):
            self._shown = now
            self._show(now)

    def _show(self, now: float) -> None:
        begun, first = self._from or (now, self._share)
        gained = self._share - first
        left = (now - begun) * (1 - self._share) / gained if gained > 0 else None
        done, fresh = Counts(), Counts()
        for whole, part in ((done, self.done), (fresh, self.fresh)):
            whole.add(part)
            whole.add(self._ahead)
        said = line(done, fresh, now - self._began, left)
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
