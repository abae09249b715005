"""From samples and metrics to the numbers of a table. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from xlt_serve.bench.loops import LoadRun, Sample, errors, statuses, times

Histogram = dict[float, float]
"""Upper bound of a bucket → how many values are at most that."""

_LINE = re.compile(r'^(\w+)_bucket\{(?:.*,)?le="([^"]+)"(?:,.*)?\} (\S+)$')


def histogram(text: str, name: str) -> Histogram:
    """Of a page of metrics, all labels together; empty where it is not there."""
    out: Histogram = {}
    for line in text.splitlines():
        if (found := _LINE.match(line)) and found[1] == name:
            bound = float(found[2])
            out[bound] = out.get(bound, 0.0) + float(found[3])
    return out


def largest(before: Histogram, after: Histogram) -> tuple[float, float] | None:
    """The bounds of the bucket that holds the largest value between two looks; None: there was none."""
    lower, found, seen = 0.0, None, 0.0
    for upper in sorted(after):
        fresh = after[upper] - before.get(upper, 0.0)
        if fresh > seen:
            found, seen = (lower, upper), fresh
        lower = upper
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """nan where there are none."""
    return float(np.percentile(values, share)) if values else math.nan


def within(run: LoadRun, start: float, end: float) -> LoadRun:
    """The requests that were due in these seconds of a run."""
    return LoadRun([s for s in run.samples if start <= s.due < end], end - start, run.generator)


def seen(run: LoadRun) -> dict[str, Any]:
    """What a client saw: milliseconds, refusals (429) and all else that was not 200."""
    found, counted = times(run), statuses(run)
    wrong = {status: count for status, count in errors(run).items() if status != "429"}
    return {
        "requests": len(run.samples),
        "p50": percentile(found, 50),
        "p99": percentile(found, 99),
        "max": max(found, default=math.nan),
        "refused": counted[429],
        "errors": wrong,
    }


def recovered(run: LoadRun, last: float) -> float | None:
    """Seconds from ``last`` to the first answer with 200 to a request sent after it."""
    good = [s.done - last for s in run.samples if s.sent >= last and s.reply.status == 200]
    return min(good, default=None)


def refused_until(run: LoadRun, last: float) -> float:
    """Seconds from ``last`` for which requests sent after it were still not answered with 200: until
    the last of those that were not was sent."""
    wrong = [s.sent - last for s in run.samples if s.sent >= last and s.reply.status != 200]
    return max(wrong, default=0.0)


def by_size(samples: Iterable[Sample]) -> dict[int, list[float]]:
    """Milliseconds of good answers from when they were sent, by how many texts they answer."""
    out: dict[int, list[float]] = {}
    for sample in samples:
        if sample.reply.status == 200:
            size = sample.reply.items + sample.reply.failed
            out.setdefault(size, []).append(1000 * (sample.done - sample.sent))
    return out


def capacity(run: LoadRun) -> float:
    """Requests answered a second in a closed loop, those at its ends left out: clients begin together,
    and stop one by one."""
    done = sorted(s.done for s in run.samples if s.reply.status == 200)
    inner = done[len(done) // 10 : len(done) - len(done) // 10]
    if len(inner) < 3 or inner[-1] <= inner[0]:
        return len(done) / run.seconds
    return (len(inner) - 1) / (inner[-1] - inner[0])


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most of several runs."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return dict.fromkeys(("median", "least", "most"), math.nan)
    return {"median": float(np.median(known)), "least": min(known), "most": max(known)}


def failings(row: Mapping[str, Any]) -> list[str]:
    """Which goals a row of the table misses; empty: the server stands."""
    out = []
    light = row["during"]
    if light["errors"]:
        out.append("errors")
    if light["refused"]:
        out.append("refusals")
    if row["ratio"] >= 2:
        out.append("memory")
    if not row["livez"]["p99"] <= 100:
        out.append("probe")
    if row["lag_ms"] is not None and row["lag_ms"] > 25:
        out.append("loop")
    if row["recovered"] is None or row["after"]["errors"]:
        out.append("not back")
    if row["wrong"]:
        out.append(f"attacker got {row['wrong'][0]}")
    return out
