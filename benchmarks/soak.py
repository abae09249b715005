"""An hour of everything: ``python -m benchmarks.soak --minutes 60``.

Two workers serve requests of all modes while clients die in the middle of a request or an answer,
bundles are swapped and short floods come. Every ten seconds: memory (sum of the proportional set sizes),
what a probe client with its own key saw, the longest delay of the event loop, errors. Is there a trend?
A straight line through the windows says so, with an interval that allows for windows that resemble their
neighbours. Ctrl-C keeps what was measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markdown import table
from benchmarks.pss import family, family_megabytes
from benchmarks.siege import materials, numbers
from benchmarks.siege.apart import Apart
from benchmarks.siege.assault import ADMIN, HOST, LIGHT, Assault, Target, head
from benchmarks.siege.field import asking, lone_texts, metrics, standing
from benchmarks.siege.floods import Flooding, capacity_load, flood
from xlt_serve.bench.http_load import Endpoint
from xlt_serve.bench.loops import Reply
from xlt_serve.bench.texts import mixed

ROOT = Path(__file__).parent.parent
PROBES = 10.0
"""Requests a second of the probe client."""
FLAT = {"memory": 0.05, "p50": 0.1, "p99": 0.25}
"""Share of the mean by which something may grow in the whole run, at the upper end of its interval."""


@dataclass(frozen=True)
class Pace:
    """Seconds from one to the next."""

    window: float = 10.0
    swap: float = 170.0
    flood: float = 290.0
    flooding: float = 5.0
    death: float = 2.0
    request: float = 0.15


QUICK = Pace(2.0, 15.0, 20.0, 2.0, 1.0, 0.2)


@dataclass
class Soak:
    """A run under way. ``rows``: a window each."""

    target: Target
    pace: Pace
    ends: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    probed: list[tuple[float, int]] = field(default_factory=list)  # milliseconds and status
    events: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    begun: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.ends

    async def wait(self, seconds: float) -> bool:
        """Whether there is still time."""
        await asyncio.sleep(max(0.0, min(seconds, self.ends - time.monotonic())))
        return not self.over

    def client(self) -> Assault:
        return Assault(self.target)


# What happens to the service.


def ordinary(seed: int) -> list[tuple[str, bytes]]:
    """Requests of all modes that the bundles have."""
    texts = mixed(64, seed)
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/classify", {"texts": texts[:1]}),
        ("/classify", {"texts": texts[1:17]}),
        ("/classify", {"texts": [" ".join(texts[17:40])], "long": "windows"}),
        ("/classify", {"texts": texts[40:41], "mode": "smoothed", "samples": 50}),
        ("/classify", {"texts": ["the goal of the match"], "mode": "smoothed", "noise": "synonym",
                       "words": 1, "language": "en", "samples": 50}),
        ("/classify", {"texts": texts[41:43], "mode": "paired", "bundle": "topics-paired",
                       "translations": ["A match was won.", None]}),
        ("/zero_shot", {"texts": texts[43:45], "labels": ["sports", "travel"], "bundle": "judge"}),
    ]  # fmt: skip
    return [(path, json.dumps(body).encode()) for path, body in bodies]


async def requests(soak: Soak) -> None:
    number = 0
    while await soak.wait(soak.pace.request):
        batch = ordinary(number)
        path, body = batch[number % len(batch)]
        number += 1
        client = soak.client()
        await client.ask(body, path, patience=60)
        soak.counts.update({f"request: {said}": n for said, n in client.got.items()})


async def deaths(soak: Soak) -> None:
    """Clients that leave in the middle of a request, of the work, and of the answer."""
    generator = random.Random(0)
    long = json.dumps({"texts": mixed(200), "mode": "smoothed", "samples": 100}).encode()
    wide = json.dumps({"texts": mixed(200)}).encode()
    while await soak.wait(soak.pace.death):
        kind = generator.choice(["request", "work", "answer"])
        line = await soak.client().connect()
        if line is None:
            continue
        body = long if kind == "work" else wide
        await line.send(head(len(body)) + (body[:500] if kind == "request" else body))
        if kind == "answer":
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(10):
                    await line.reader.readexactly(100)
        else:
            await asyncio.sleep(0.2)
        line.writer.transport.abort()
        soak.counts[f"died in its {kind}"] += 1


async def swaps(soak: Soak) -> None:
    number = 0
    while await soak.wait(soak.pace.swap):
        number += 1
        place = soak.target.folder / ("good", "better")[number % 2]
        body = json.dumps({"name": "topics", "bundle": str(place)}).encode()
        status, _ = await soak.client().ask(body, "/models", ADMIN, patience=120)
        soak.counts[f"swap: {status}"] += 1
        soak.events.append("swap")


async def floods(soak: Soak, rate: float) -> None:
    number = 0
    while await soak.wait(soak.pace.flood):
        number += 1
        asked = Flooding(soak.target, "mixed", rate, soak.pace.flooding, number)
        with Apart(flood, asked) as flooding:
            await flooding.ready()
            soak.events.append("flood")
            flooding.go()
            done = await flooding.result(120)
        soak.counts.update({f"flood: {status}": n for status, n in done.value.statuses.items()})
        soak.events.append("flood")


async def windows(soak: Soak) -> None:
    page = await metrics(soak.target)
    while await soak.wait(soak.pace.window):
        after = await metrics(soak.target)
        lag = numbers.largest(
            *(numbers.histogram(one, "xlt_loop_lag_seconds") for one in (page, after))
        )
        page = after
        memory = await asyncio.to_thread(lambda: family_megabytes(family(soak.target.process)))
        probed, soak.probed = soak.probed, []
        events, soak.events = soak.events, []
        soak.rows.append(
            window(time.monotonic() - soak.begun, memory, probed)
            | {"lag_ms": None if lag is None else 1000 * lag[1], "events": sorted(set(events))}
        )


def window(moment: float, memory: float, probed: list[tuple[float, int]]) -> dict[str, Any]:
    good = [ms for ms, status in probed if status == 200]
    return {
        "seconds": moment,
        "memory": memory,
        "p50": numbers.percentile(good, 50),
        "p99": numbers.percentile(good, 99),
        "requests": len(probed),
        "refused": sum(status == 429 for _, status in probed),
        "errors": sum(status not in (200, 429) for _, status in probed),
    }


async def soaked(seconds: float, pace: Pace, workers: int) -> Soak:
    def prepare(folder: Path) -> dict[str, str]:
        materials.copied(folder / "good", "good")
        materials.copied(folder / "better", "better")
        return materials.everything(folder)

    with standing(workers=workers, prepare=prepare) as (server, target):
        target = replace(target, process=server.process.pid)
        with Apart(capacity_load, target, "mixed", 3.0) as able:
            await able.ready()
            able.go()
            rate = max(1.0, 3 * (await able.result(120)).value)
        soak = Soak(target, pace, time.monotonic() + seconds)
        url = f"http://{HOST}:{target.port}"
        endpoint = Endpoint(url, lone_texts(target), LIGHT, timeout=60)

        async def probe(number: int) -> Reply:
            begun = time.perf_counter()
            reply = await endpoint.send(number)
            soak.probed.append((1000 * (time.perf_counter() - begun), reply.status))
            return reply

        tasks = [requests(soak), deaths(soak), swaps(soak), floods(soak, rate), windows(soak)]
        with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C: what there is
            async with asking(probe, PROBES, longest=seconds + 60):
                await asyncio.gather(*tasks)
        await endpoint.aclose()
        return soak


# Is there a trend?


@dataclass(frozen=True)
class Trend:
    """``slope`` a second with its 95 % interval; ``growth``: of the upper end over the whole time, to
    the mean."""

    slope: float
    low: float
    high: float
    mean: float
    growth: float


def trend(moments: list[float], values: list[float]) -> Trend:
    """Least squares; the interval after Newey & West (1987): neighbouring windows are alike."""
    known = [(x, y) for x, y in zip(moments, values, strict=True) if not math.isnan(y)]
    if len(known) < 8:
        return Trend(*[math.nan] * 5)
    x, y = (np.array(column) for column in zip(*known, strict=True))
    count, away = len(x), x - x.mean()
    slope = float(away @ y / (away @ away))
    moved = away * (y - y.mean() - slope * away)
    lags = int(4 * (count / 100) ** (2 / 9)) + 1
    total = moved @ moved
    for lag in range(1, lags + 1):
        total += 2 * (1 - lag / (lags + 1)) * (moved[lag:] @ moved[:-lag])
    wide = 1.96 * math.sqrt(max(0.0, total * count / (count - 2))) / float(away @ away)
    growth = (slope + wide) * float(x[-1] - x[0]) / float(y.mean())
    return Trend(slope, slope - wide, slope + wide, float(y.mean()), growth)


def trends(rows: list[dict[str, Any]], warm_up: float = 1 / 6) -> dict[str, Trend]:
    """After the first sixth. Latency: of windows without a flood or a swap."""
    if not rows:
        return {}
    late = [row for row in rows if row["seconds"] >= warm_up * rows[-1]["seconds"]]
    quiet = [row for row in late if not row["events"]]
    return {
        name: trend([row["seconds"] for row in found], [row[name] for row in found])
        for name, found in (("memory", late), ("p50", quiet), ("p99", quiet))
    }


def markdown(results: dict[str, Any]) -> str:
    rows = results["rows"]
    units = {"memory": "MB", "p50": "ms", "p99": "ms"}
    shown = []
    measured = {(name, ""): found for name, found in trends(rows).items()}
    # Memory grows by every bundle's first copies; what it does after that tells a leak from a warm-up.
    measured |= {(name, ", second half"): found for name, found in trends(rows, 1 / 2).items()}
    for (name, part), found in measured.items():
        hour = [f"{3600 * value:+.2f}" for value in (found.slope, found.low, found.high)]
        flat = "yes" if found.growth <= FLAT[name] else "**no**"
        shown.append(
            (
                f"{name}, {units[name]}{part}",
                f"{found.mean:.1f}",
                f"{hour[0]} [{hour[1]}, {hour[2]}]",
                f"{100 * found.growth:.1f} % (at most {100 * FLAT[name]:.0f})",
                flat,
            )
        )
    minutes = rows[-1]["seconds"] / 60 if rows else 0.0
    lags = [row["lag_ms"] for row in rows if row["lag_ms"] is not None]
    about = (
        f"{minutes:.0f} minutes, {results['workers']} workers: all modes, clients that die in the middle,"
        " swaps, floods of 3 × capacity. A probe client with a key of its own saw"
        f" {sum(row['requests'] for row in rows):,} answers, {sum(row['refused'] for row in rows)} refusals and"
        f" {sum(row['errors'] for row in rows)} errors. Longest delay of the event loop:"
        f" {f'{max(lags):.0f} ms (bound of its bucket)' if lags else 'n/a'}."
    )
    head_ = ["", "mean", "slope an hour [95 %]", "growth over this time, upper end", "flat"]
    counts = [(what, f"{count:,}") for what, count in sorted(results["counts"].items())]
    return "\n".join(
        [
            "# Soak", "", about, "", *table(head_, shown), "",
            "![memory and latency over time](../../docs/soak.png)", "",
            *table(["what happened", "times"], counts), "",
        ]
    )  # fmt: skip


def picture(rows: list[dict[str, Any]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 6), sharex=True)
    minutes = [row["seconds"] / 60 for row in rows]
    above.plot(minutes, [row["memory"] for row in rows], color="#2563eb")
    above.set_ylim(bottom=0)
    above.set_ylabel("memory of all processes, MB")
    for name, colour in (("p50", "#059669"), ("p99", "#d97706")):
        below.plot(minutes, [row[name] for row in rows], color=colour, label=name)
    below.set_yscale("log")
    below.set_ylabel("probe client, ms")
    below.set_xlabel("minutes")
    for name, colour in (("swap", "#7c3aed"), ("flood", "#dc2626")):
        marked = [row["seconds"] / 60 for row in rows if name in row["events"]]
        for place, moment in enumerate(marked):
            label = name if not place else None
            below.axvline(moment, color=colour, alpha=0.25, label=label)
            above.axvline(moment, color=colour, alpha=0.25)
    below.legend(loc="upper right", fontsize=8)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="everything more often, to try it")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "soak.json")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "soak.png")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the service is ended on every way out
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> None:
    soak = await soaked(60 * options.minutes, QUICK if options.quick else Pace(), options.workers)
    results = {
        "workers": options.workers,
        "quick": options.quick,
        "counts": dict(soak.counts),
        "rows": soak.rows,
    }
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    picture(soak.rows, options.picture)
    report = markdown(results)
    options.out.with_suffix(".md").write_text(report, encoding="utf-8")
    print(report)


if __name__ == "__main__":
    main()
