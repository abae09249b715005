"""Plots as SVG text: no library, nothing to load, sharp at every size."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 16, 46
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]


def lines(
    series: Sequence[Series], x: str, y: str, log_x: bool = False, log_y: bool = False
) -> str:
    """Points joined in their order, a colour and a name for each series."""
    every = [point for one in series for point in one.points]
    if not every:
        return ""
    horizontal = _Axis([p[0] for p in every], LEFT, WIDTH - RIGHT, log_x)
    vertical = _Axis([p[1] for p in every], HEIGHT - BOTTOM, TOP, log_y)
    parts = [_frame(horizontal, vertical, x, y)]
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        spots = [(horizontal.at(a), vertical.at(b)) for a, b in one.points]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in spots)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (a, b), (p, q) in zip(spots, one.points, strict=True):
            said = f"{one.name}: {_short(p)}, {_short(q)}"
            parts.append(
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}">'
                f"<title>{html.escape(said)}</title></circle>"
            )
        parts.append(_legend(number, one.name, colour))
    return _svg(parts)


def stacked(names: Sequence[str], parts_of: Sequence[tuple[str, Sequence[float]]], y: str) -> str:
    """A bar for each name, of parts on top of one another."""
    totals = [sum(values[i] for _, values in parts_of) for i in range(len(names))]
    vertical = _Axis([0.0, *totals], HEIGHT - BOTTOM, TOP, False, zero=True)
    step = (WIDTH - LEFT - RIGHT) / max(1, len(names))
    out = [_grid(vertical, y)]
    for index, name in enumerate(names):
        left, base = LEFT + step * index + step * 0.15, 0.0
        for number, (part, values) in enumerate(parts_of):
            top = base + values[index]
            high, low = vertical.at(top), vertical.at(base)
            said = f"{name}, {part}: {_short(values[index])}"
            out.append(
                f'<rect x="{left:.1f}" y="{high:.1f}" width="{step * 0.7:.1f}" '
                f'height="{max(0.0, low - high):.1f}" fill="{COLOURS[number % len(COLOURS)]}">'
                f"<title>{html.escape(said)}</title></rect>"
            )
            base = top
        middle = left + step * 0.35
        out.append(
            f'<text x="{middle:.1f}" y="{HEIGHT - BOTTOM + 14}" class="t" '
            f'transform="rotate(20 {middle:.1f} {HEIGHT - BOTTOM + 14})">{html.escape(name)}</text>'
        )
    out += [_legend(n, part, COLOURS[n % len(COLOURS)]) for n, (part, _) in enumerate(parts_of)]
    return _svg(out, HEIGHT + 24)


def heat(
    rows: Sequence[int],
    columns: Sequence[int],
    values: dict[tuple[int, int], float],
    x: str,
    y: str,
) -> str:
    """Cells coloured by the logarithm of their value, which also stands in them."""
    logs = [math.log(value) for value in values.values() if value > 0]
    low, high = min(logs), max(logs)
    wide, tall = 84, 34
    out = [f'<text x="{LEFT + wide * len(columns) / 2}" y="12" class="t m">{html.escape(x)}</text>']
    out.append(f'<text x="4" y="28" class="t">{html.escape(y)}</text>')
    for number, column in enumerate(columns):
        out.append(f'<text x="{LEFT + wide * (number + 0.5)}" y="28" class="t m">{column}</text>')
    for line, row in enumerate(rows):
        top = 36 + tall * line
        out.append(f'<text x="{LEFT - 8}" y="{top + tall / 2 + 4}" class="t e">{row}</text>')
        for number, column in enumerate(columns):
            value = values.get((row, column))
            if value is None:
                continue
            share = (math.log(value) - low) / (high - low) if high > low else 0.0
            ink = "#fff" if share > 0.55 else "#111"
            out.append(
                f'<rect x="{LEFT + wide * number}" y="{top}" width="{wide - 2}" height="{tall - 2}" '
                f'fill="hsl(215 80% {92 - 60 * share:.0f}%)"/>'
                f'<text x="{LEFT + wide * (number + 0.5) - 1}" y="{top + tall / 2 + 4}" class="t m" '
                f'style="fill:{ink}">{_short(value)}</text>'
            )
    return _svg(out, 36 + tall * len(rows) + 8, LEFT + wide * len(columns) + 8)


class _Axis:
    """From values to pixels, with round numbers to mark."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, log: bool, zero: bool = False
    ) -> None:
        self.log = log and min(values) > 0
        low, high = min(values), max(values)
        if self.log:
            low, high = math.log10(low), math.log10(high)
            pad = max(0.05, 0.05 * (high - low))
        else:
            low = 0.0 if zero or low >= 0 else low
            pad = 0.05 * (high - low or 1)
        self.low, self.high = (low - pad if self.log else low), high + pad
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        place = math.log10(value) if self.log else value
        return self.start + (self.end - self.start) * (place - self.low) / (self.high - self.low)

    def marks(self) -> list[float]:
        if self.log:
            found = [
                base * 10.0**power
                for power in range(math.floor(self.low), math.ceil(self.high) + 1)
                for base in (1, 2, 5)
            ]
            return [m for m in found if self.low <= math.log10(m) <= self.high]
        rough = (self.high - self.low) / 7
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * n for n in (1, 2, 5, 10) if unit * n >= rough)
        first = math.ceil(self.low / step)
        return [step * n for n in range(first, math.floor(self.high / step) + 1)]


def _frame(horizontal: _Axis, vertical: _Axis, x: str, y: str) -> str:
    out = [_grid(vertical, y)]
    for mark in horizontal.marks():
        at = horizontal.at(mark)
        out.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" class="g"/>'
            f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" class="t m">{_short(mark)}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{HEIGHT - 8}" class="t m">{html.escape(x)}</text>')
    return "".join(out)


def _grid(vertical: _Axis, y: str) -> str:
    out = []
    for mark in vertical.marks():
        at = vertical.at(mark)
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" class="g"/>'
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" class="t e">{_short(mark)}</text>'
        )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(
        f'<text x="14" y="{middle}" class="t m" transform="rotate(-90 14 {middle})">'
        f"{html.escape(y)}</text>"
    )
    return "".join(out)


def _legend(number: int, name: str, colour: str) -> str:
    top = TOP + 8 + 18 * number
    left = WIDTH - RIGHT + 14
    return (
        f'<rect x="{left}" y="{top - 8}" width="10" height="10" fill="{colour}"/>'
        f'<text x="{left + 15}" y="{top + 1}" class="t">{html.escape(name)}</text>'
    )


def _svg(parts: Sequence[str], height: float = HEIGHT, width: float = WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">'
        + "".join(parts)
        + "</svg>"
    )


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
