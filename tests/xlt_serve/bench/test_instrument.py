"""The instrument itself: what goes in with a known distribution must come out with it."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlt_serve.bench import grid, loops, stats
from xlt_serve.bench.loops import LoadRun, Reply


class Fake:
    """Answers after a delay of a known distribution; any number at a time."""

    def __init__(self, quantile: Callable[[float], float], seed: int = 0) -> None:
        self.quantile, self.random = quantile, random.Random(seed)

    async def ask(self, _: int) -> Reply:
        await asyncio.sleep(self.quantile(self.random.random()))
        return Reply()


def two_humps(share: float) -> float:
    """95 % around 20 ms, 5 % at 120 ms: the tail is another world than the median."""
    return 0.015 + 0.01 * share / 0.95 if share < 0.95 else 0.12


def lognormal(share: float) -> float:
    share = min(max(share, 1e-9), 1 - 1e-9)
    return 0.02 * math.exp(0.5 * NormalDist().inv_cdf(share))


async def with_lateness(load: Awaitable[LoadRun]) -> tuple[LoadRun, float]:
    """And by how many milliseconds this machine's event loop was late meanwhile (p99)."""
    late: list[float] = []

    async def watch() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append(1000 * (time.perf_counter() - begun) - 1)

    watching = asyncio.create_task(watch())
    run = await load
    watching.cancel()
    return run, float(np.percentile(late, 99))


@pytest.mark.parametrize("quantile", [two_humps, lognormal])
@pytest.mark.parametrize("loop", ["closed", "open"])
def test_a_known_distribution_comes_back(loop: str, quantile: Callable[[float], float]) -> None:
    fake = Fake(quantile)
    if loop == "closed":
        load = loops.closed(fake.ask, 60, 1.0, warm_up=0.1)
    else:
        load = loops.open_loop(fake.ask, 1200, 1.0, warm_up=0.1)
    run, late = asyncio.run(with_lateness(load))
    found = stats.summary([1000 * sample.latency for sample in run.samples])
    assert found["count"] > 800
    # The clock and the event loop add a little, on a busy machine more; they never take away.
    slack = 6 + 2 * late
    for percentile in (50, 90, 99):
        expected = [
            1000 * quantile(percentile / 100 + d)
            for d in (-0.02, 0.02 if percentile < 99 else 0.009)
        ]
        assert expected[0] - 0.5 <= found[f"p{percentile}"] <= expected[1] + slack


class Stalling:
    """One at a time, 1 ms each, but for one second in which nothing moves."""

    def __init__(self, begin: float, stall: float) -> None:
        self.begin, self.stall = begin, stall
        self.turn = asyncio.Lock()
        self.start: float | None = None

    async def ask(self, _: int) -> Reply:
        loop = asyncio.get_running_loop()
        self.start = self.start or loop.time()
        async with self.turn:
            since = loop.time() - self.start
            if self.begin <= since < self.begin + self.stall:
                await asyncio.sleep(self.begin + self.stall - since)
            await asyncio.sleep(0.001)
        return Reply()


def test_a_stall_shows_in_the_open_loop_and_hides_in_the_closed_one() -> None:
    """One second of four stands still. A quarter of those who came had to wait, on average half a
    second, which only the open loop sees: the closed one asked once in that second."""

    async def both() -> tuple[loops.LoadRun, loops.LoadRun]:
        return await asyncio.gather(
            loops.open_loop(Stalling(0.5, 1.0).ask, 100, 4.0),
            loops.closed(Stalling(0.5, 1.0).ask, 1, 4.0),
        )

    opened, closed = asyncio.run(both())
    seen = stats.summary([1000 * s.latency for s in opened.samples])
    hidden = stats.summary([1000 * s.latency for s in closed.samples])
    assert seen["p99"] > 850  # those who came just after it began waited all of it
    assert seen["p90"] > 350
    assert hidden["p99"] < 100 < 900 < hidden["max"]
    # Closed form: an arrival at time u of the stall waits 1 − u; 22.5 % wait more than 100 ms,
    # and the queue that formed takes a little longer.
    waited = np.mean([s.latency > 0.1 for s in opened.samples])
    assert 0.17 <= waited <= 0.4


def test_requests_are_due_when_they_are_whatever_the_server_does() -> None:
    async def never(_: int) -> Reply:
        await asyncio.sleep(3600)
        return Reply()

    run = asyncio.run(loops.open_loop(never, 200, 0.5, patience=0.3))
    assert len(run.samples) == len(loops.arrivals(200, 0.5, 0))
    assert loops.errors(run) == {"no answer": len(run.samples)}
    assert min(s.latency for s in run.samples) >= 0.29  # counted as waiting, not left out


def test_arrivals_are_poisson() -> None:
    moments = loops.arrivals(1000, 60, seed=1)
    gaps = np.diff(moments)
    assert abs(len(moments) - 60_000) < 4 * math.sqrt(60_000)
    # exponential: mean = standard deviation = 1 ms; counts in 100 ms have variance = mean
    assert np.mean(gaps) == pytest.approx(1e-3, rel=0.02)
    assert np.std(gaps) == pytest.approx(1e-3, rel=0.02)
    counts = np.histogram(moments, 600, (0, 60))[0]
    assert np.var(counts) / np.mean(counts) == pytest.approx(1, abs=0.25)
    assert loops.arrivals(1000, 60, seed=1) == moments


def test_closed_keeps_so_many_under_way() -> None:
    now = most = 0

    async def ask(_: int) -> Reply:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return Reply(503) if most % 2 else Reply()

    run = asyncio.run(loops.closed(ask, 7, 0.2))
    assert most == 7
    point = loops.described(run, loop="closed", mode="plain", clients=7)
    assert point["errors"] == {"503": point["requests"]}
    assert point["requests_per_second"] == 0  # an error is no answer
    assert point["latency_ms"] == {"count": 0}


def test_refusals_are_no_answers_and_silence_is_the_slowest() -> None:
    """Half is refused in 1 ms, one in ten gets nothing after 2 ms; answers take 100 to 139 ms."""
    samples = []
    for n in range(100):
        if n % 2:
            seconds, reply = 0.001, Reply(429, 0)
        elif n % 20 == 0:
            seconds, reply = 0.002, Reply(0, 0)
        else:
            seconds, reply = 0.1 + 0.001 * (n % 40), Reply(200, 3, failed=1)
        samples.append(loops.Sample(n / 10, n / 10, n / 10 + seconds, reply))
    point = loops.described(loops.LoadRun(samples, 10.0, 0.0), loop="open", mode="plain", rate=10.0)
    found = point["latency_ms"]
    assert found["count"] == 50
    assert 100 <= found["p50"] <= 139
    assert found["p99"] == found["max"] == pytest.approx(138)
    assert point["errors"] == {"429": 50, "no answer": 5, "failed texts": 45}
    assert (point["requests"], point["requests_per_second"]) == (100, 4.5)
    assert point["items_per_second"] == 13.5  # goodput: what failed is not in it


def test_more_errors_are_seen_and_as_many_are_not() -> None:
    assert stats.more_often((10, 1000), (12, 1000)) > 0.2
    assert stats.more_often((10, 1000), (50, 1000)) < 0.001
    assert stats.more_often((10, 1000), (0, 1000)) > 0.5
    assert stats.more_often((1000, 1000), (1000, 1000)) == 1
    assert stats.more_often((1000, 10_000), (1100, 10_000)) < 0.05
    assert stats.more_often((1000, 10_000), (1100, 10_000), limit=1.2) > 0.5


def test_a_fake_session_comes_back_from_the_grid() -> None:
    """On a clock of its own: exactly the delays that it took, warm-up left out."""
    generator = random.Random(0)
    now = 0.0
    delays: list[float] = []

    def run() -> None:
        nonlocal now
        delays.append(lognormal(generator.random()))
        now += delays[-1]

    times = grid.timed(run, 30.0, 10, lambda: None, clock=lambda: now)
    np.testing.assert_allclose(times, 1000 * np.array(delays[10:]))
    found = stats.summary(times)
    for percentile in (50, 90, 95, 99):
        low, high = found["intervals"][f"p{percentile}"]
        assert low <= 1000 * lognormal(percentile / 100) <= high


def test_intervals_cover_as_often_as_they_say() -> None:
    generator = np.random.default_rng(0)
    for share, count in ((0.5, 200), (0.99, 2000)):
        truth = -math.log(1 - share)
        hits = 0
        for _ in range(400):
            low, high = stats.interval(np.sort(generator.exponential(size=count)), share)
            hits += low <= truth <= high
        assert 0.92 <= hits / 400 <= 0.995


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.01, 1e4), min_size=1, max_size=300))
def test_summaries_agree_with_numpy(times: list[float]) -> None:
    found = stats.summary(times)
    for percentile in stats.PERCENTILES:
        assert found[f"p{percentile}"] == pytest.approx(np.percentile(times, percentile), abs=1e-4)
        low, high = found["intervals"][f"p{percentile}"]
        assert low <= found[f"p{percentile}"] + 1e-4
        assert high >= found[f"p{percentile}"] - 1e-4
    assert len(found["blocks"]["p50"]) == min(20, len(times))


def test_stable_means_a_narrow_tail() -> None:
    generator = np.random.default_rng(0)
    assert stats.is_stable(list(10 + generator.random(3000)))
    assert not stats.is_stable(list(10 + generator.random(500)))  # 5 beyond the 99th
    assert not stats.is_stable(list(generator.pareto(1.0, 3000)))


def blocks(generator: np.random.Generator, scale: float) -> list[float]:
    return list(scale * 10 * np.exp(0.05 * generator.standard_normal(20)))


def test_the_gate_errs_as_seldom_as_it_says_and_sees_what_is_there() -> None:
    generator = np.random.default_rng(1)
    at_limit, slower, covered = 0, 0, 0
    for trial in range(200):
        before = blocks(generator, 1.0)
        same = stats.ratio(before, blocks(generator, 1.05), 1.05, 500, trial)
        at_limit += same.p < 0.05
        covered += same.low <= 1.05 <= same.high
        slower += stats.ratio(before, blocks(generator, 1.15), 1.05, 500, trial).p < 0.05
    assert at_limit / 200 <= 0.1  # 5 % slower is still allowed at a limit of 5 %
    assert slower / 200 >= 0.95
    assert 0.88 <= covered / 200 <= 0.99
