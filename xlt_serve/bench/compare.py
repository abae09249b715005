"""Two runs side by side: what differs, by how much, and whether chance could have done it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlt_serve.bench.stats import Ratio, more_often, ratio
from xlt_serve.errors import DataError, UsageError
from xlt_serve.evaluation.bootstrap import holm

LEVEL = 0.05
MEASURES = ("p50", "p95")


@dataclass(frozen=True, slots=True)
class Line:
    """``slower``: significantly beyond the limit, after Holm's correction over all lines."""

    name: str
    measure: str
    first: float
    second: float
    ratio: Ratio
    p: float
    p_differ: float
    slower: bool

    @property
    def verdict(self) -> str:
        if self.p_differ >= LEVEL:
            return "same"
        return "slower" if self.ratio.ratio > 1 else "faster"


def compare(first: dict[str, Any], second: dict[str, Any], limit: float) -> list[Line]:
    """A line for each point and measure that both have. ``limit``: 1.05 allows 5 %."""
    before, after = _points(first), _points(second)
    shared = [name for name in before if name in after]
    if not shared:
        raise UsageError(
            "the two runs", "have no point in common", "measure the same shapes or loads"
        )
    found = []
    for name in shared:
        for measure in MEASURES:
            a, b = before[name]["latency_ms"], after[name]["latency_ms"]
            if not a["count"] or not b["count"]:
                continue
            tested = ratio(a["blocks"][measure], b["blocks"][measure], limit)
            found.append((name, measure, a[measure], b[measure], tested))
    adjusted = holm([entry[4].p for entry in found])
    differ = holm([entry[4].p_differ for entry in found])
    return [
        Line(*entry, p, q, p < LEVEL) for entry, p, q in zip(found, adjusted, differ, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Fault:
    """What no ratio of times shows: a point that is gone, or that fails as it did not before."""

    name: str
    what: str


def faults(first: dict[str, Any], second: dict[str, Any], limit: float) -> list[Fault]:
    """Points that only the first run has, and errors that the second has anew, or significantly
    more than ``limit`` times as often."""
    before, after = _points(first), _points(second)
    out = [Fault(name, "was not measured again") for name in before if name not in after]
    tested = []
    for name in before:
        if name not in after:
            continue
        a, b = before[name], after[name]
        for kind, count in b.get("errors", {}).items():
            earlier, of, now_of = a.get("errors", {}).get(kind, 0), _requests(a), _requests(b)
            what = f"{kind}: {earlier} of {of} before, {count} of {now_of} after"
            if not earlier:
                out.append(Fault(name, what))
            else:  # a request may have several texts that fail
                p = more_often((min(earlier, of), of), (min(count, now_of), now_of), limit)
                tested.append((Fault(name, what), p))
    adjusted = holm([p for _, p in tested])
    return out + [fault for (fault, _), p in zip(tested, adjusted, strict=True) if p < LEVEL]


def rates(report: dict[str, Any]) -> dict[str, list[float]]:
    """Of a run's open loop, by mode: a run at other rates has no point in common with it."""
    out: dict[str, list[float]] = {}
    for point in report["points"]:
        if point.get("loop") == "open":
            out.setdefault(point["mode"], []).append(point["rate"])
    return out


def table(lines: list[Line], limit: float) -> str:
    out = [f"{'':34} {'':4} {'before':>9} {'after':>9}  ratio [95 %]           verdict"]
    for line in lines:
        found = line.ratio
        mark = (
            f"  SLOWER than the limit of {limit - 1:.0%} (p = {line.p:.4f})" if line.slower else ""
        )
        out.append(
            f"{line.name:34} {line.measure:4} {line.first:9.2f} {line.second:9.2f}  "
            f"{found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}]  {line.verdict}{mark}"
        )
    return "\n".join(out)


def other_loads(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """What makes the times of two runs those of different work: (what, before, after)."""
    out = []
    for key in ("items_per_request", "threads"):
        a, b = first.get("settings", {}).get(key), second.get("settings", {}).get(key)
        if a != b:
            out.append((key, a, b))
    if first.get("texts") != second.get("texts"):
        out.append(("texts", first.get("texts"), second.get("texts")))
    return out


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """What besides the code is not the same: such a comparison says little."""
    out = [f"{key}: {a} before, {b} after" for key, a, b in other_loads(first, second)]
    for key in ("target", "gpu", "providers"):
        if first.get(key) != second.get(key):
            out.append(f"{key}: {first.get(key)} before, {second.get(key)} after")
    for key in ("processor", "cores", "memory_gb"):
        a, b = first["machine"].get(key), second["machine"].get(key)
        if a != b:
            out.append(f"{key}: {a} before, {b} after")
    a, b = first["machine"]["packages"], second["machine"]["packages"]
    for name in sorted(a.keys() | b.keys()):
        if a.get(name) != b.get(name):
            out.append(f"{name}: {a.get(name, 'none')} before, {b.get(name, 'none')} after")
    return out


def read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["format"] != 1 or "points" not in found:
            raise KeyError
    except FileNotFoundError:
        raise DataError(file, "is not there", "make it with xlt bench … --json FILE") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(file, "is not a report of xlt bench", "make it with --json FILE") from None
    report: dict[str, Any] = found
    return report


def percentage(text: str) -> float:
    """ "5%" or "5" or "0.05" is 1.05."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        raise UsageError(f"--fail-if-slower {text}", "must be a share", "write 5%") from None
    share = value / 100 if text.endswith("%") or value >= 1 else value
    if not 0 <= share < 10:
        raise UsageError(f"--fail-if-slower {text}", "must be 0 % or more", "write 5%")
    return 1 + share


def point_name(point: dict[str, Any]) -> str:
    if "loop" in point:
        load = (
            f"{point['clients']} clients" if point["loop"] == "closed" else f"{point['rate']:g}/s"
        )
        return f"{point['mode']} {point['loop']} {load}"
    who = point.get("peer") or f"{point['provider']} {point['precision']}"
    if "graph" in point:
        who = f"{who} {point['graph']}"
    if "device" in point:
        who = f"{who} GPU {point['device']}"
    return f"{who} {point['rows']} × {point['length']}"


def _requests(point: dict[str, Any]) -> int:
    """Requests of a point; earlier reports counted them all as latencies."""
    return int(point.get("requests", point["latency_ms"]["count"]))


def _points(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {point_name(point): point for point in report["points"]}
