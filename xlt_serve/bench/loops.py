"""The load generator: a closed loop (so many clients) and an open loop (so many requests a second).

In a closed loop, a client waits for the answer before it sends its next request. A server that stalls
gets few requests during the stall, which then is one slow answer among thousands: *coordinated
omission*. The open loop fixes beforehand when each request is due (Poisson). Latency counts from that
moment, also where the request was sent later. Its percentiles are what users see.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

MOST_OPEN = 4096
"""Requests under way at once, unless told otherwise; beyond that one waits, and its wait counts."""


@dataclass(frozen=True, slots=True)
class Reply:
    """``status`` as in HTTP, 0 for no answer; ``items`` answered; ``timings``: the server's own;
    ``failed``: items that have an error in an answer with status 200."""

    status: int = 200
    items: int = 1
    timings: dict[str, float] = field(default_factory=dict)
    failed: int = 0


Send = Callable[[int], Awaitable[Reply]]
"""Send request number n."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds: when it was due and when it was sent, since the loop began, and when it was done."""

    due: float
    sent: float
    done: float
    reply: Reply

    @property
    def latency(self) -> float:
        return self.done - self.due


@dataclass(slots=True)
class LoadRun:
    """``samples`` in the order in which they were due, warm-up left out. ``generator``: the share of
    one core that the load generator took; a busy one measures itself."""

    samples: list[Sample]
    seconds: float
    generator: float


async def closed(
    send: Send, clients: int, seconds: float, warm_up: float = 0.0, least: int = 0
) -> LoadRun:
    """``clients`` at a time, for ``seconds`` and until ``least`` answers (at most four times as long)."""
    samples: list[Sample] = []
    numbers = iter(range(1 << 62))
    begun = time.perf_counter()
    cpu = time.process_time()

    async def client() -> None:
        while True:
            now = time.perf_counter() - begun
            fresh = now - warm_up
            if fresh >= seconds and (len(samples) >= least or fresh >= 4 * seconds):
                return
            reply = await send(next(numbers))
            done = time.perf_counter() - begun
            if now >= warm_up:
                samples.append(Sample(now, now, done, reply))

    await asyncio.gather(*(client() for _ in range(clients)))
    whole = time.perf_counter() - begun
    samples.sort(key=lambda sample: sample.due)
    # Until the last answer: what the last clients still waited for was work, too.
    return LoadRun(samples, max(whole - warm_up, 1e-9), (time.process_time() - cpu) / whole)


async def open_loop(
    send: Send,
    rate: float,
    seconds: float,
    warm_up: float = 0.0,
    seed: int = 0,
    patience: float = 30.0,
    most: int = MOST_OPEN,
    over: Callable[[], bool] = lambda: False,
) -> LoadRun:
    """``rate`` requests a second on average, at moments that nothing can shift, for ``seconds`` or until
    it is ``over``.

    A request without an answer ``patience`` seconds after the last was due counts as status 0, with
    the time waited so far. To leave out the slowest would make a server look better the worse it is.
    """
    due = arrivals(rate, warm_up + seconds, seed)
    samples: list[Sample] = []
    gate = asyncio.Semaphore(most)
    begun = time.perf_counter()
    cpu = time.process_time()

    async def one(number: int, moment: float) -> None:
        sent = time.perf_counter() - begun
        try:
            async with gate:
                sent = time.perf_counter() - begun
                reply = await send(number)
        except asyncio.CancelledError:
            reply = Reply(0, 0)
        samples.append(Sample(moment, sent, time.perf_counter() - begun, reply))

    tasks = []
    for number, moment in enumerate(due):
        if over():
            break
        wait = moment - (time.perf_counter() - begun)
        if wait > 0:
            await asyncio.sleep(wait)
        elif number % 64 == 0:
            await asyncio.sleep(0)  # behind: let those that were sent go on
        tasks.append(asyncio.create_task(one(number, moment)))
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=patience)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
    whole = time.perf_counter() - begun
    kept = sorted((s for s in samples if s.due >= warm_up), key=lambda sample: sample.due)
    last = max((sample.done for sample in kept), default=whole)
    return LoadRun(kept, max(seconds, last - warm_up), (time.process_time() - cpu) / whole)


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """The moments of a Poisson process: gaps are exponential and know nothing of the answers."""
    generator = random.Random(seed)
    out: list[float] = []
    moment = generator.expovariate(rate)
    while moment < seconds:
        out.append(moment)
        moment += generator.expovariate(rate)
    return out


def lag(run: LoadRun) -> list[float]:
    """Milliseconds by which the load generator sent requests too late; the latency has them, too."""
    return [1000 * (sample.sent - sample.due) for sample in run.samples]


def times(run: LoadRun) -> list[float]:
    """Milliseconds of the answers with status 200, in the order in which they were due.

    A request without an answer counts as long as the slowest, however soon it broke off. Refused ones
    don't count: a refusal takes no time, and would make the median of a server that refuses every
    second request look good. Empty where there is no answer at all.
    """
    counted = [sample for sample in run.samples if sample.reply.status in (0, 200)]
    if not any(sample.reply.status for sample in counted):
        return []
    slowest = max(sample.latency for sample in counted)
    return [1000 * (s.latency if s.reply.status else slowest) for s in counted]


def statuses(run: LoadRun) -> Counter[int]:
    """How often each status came; 0: no answer."""
    return Counter(sample.reply.status for sample in run.samples)


def errors(run: LoadRun) -> dict[str, int]:
    """How often each status but 200 came, "no answer" for none; "failed texts": in answers with 200."""
    found = statuses(run)
    out = {str(status or "no answer"): count for status, count in found.items() if status != 200}
    if failed := sum(sample.reply.failed for sample in run.samples):
        out["failed texts"] = failed
    return out


def own_timings(run: LoadRun) -> dict[str, list[float]]:
    """The server's own milliseconds by name, of the answers that have them."""
    out: dict[str, list[float]] = {}
    for sample in run.samples:
        for name, value in sample.reply.timings.items():
            out.setdefault(name, []).append(value)
    return out


def described(run: LoadRun, **about: Any) -> dict[str, Any]:
    """A point of a report."""
    from xlt_serve.bench.stats import summary

    good = [sample for sample in run.samples if sample.reply.status == 200]
    late = sorted(lag(run))
    return {
        **about,
        "seconds": round(run.seconds, 4),
        "requests": len(run.samples),
        "requests_per_second": round(len(good) / run.seconds, 3),
        "items_per_second": round(sum(s.reply.items for s in good) / run.seconds, 3),
        "latency_ms": summary(times(run)),
        "server_ms": {
            name: {
                "p50": round(v[len(v) // 2], 3),
                "p99": round(v[int(len(v) * 0.99)], 3),
                "mean": round(sum(v) / len(v), 3),
            }
            for name, v in ((n, sorted(found)) for n, found in own_timings(run).items())
        },
        "errors": errors(run),
        "generator_cpu": round(run.generator, 4),
        "generator_lag_p99_ms": round(late[int(0.99 * len(late))], 3) if late else 0.0,
    }
