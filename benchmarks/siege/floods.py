"""More than can be done: fairness between keys, load shedding, the death of a worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil

from benchmarks.siege import numbers
from benchmarks.siege.apart import Apart
from benchmarks.siege.assault import HEAVY, HOST, LIGHT, Assault, Target, head
from benchmarks.siege.attacks import heavy_bodies
from benchmarks.siege.field import light_client, metrics, standing
from benchmarks.siege.materials import workers
from xlt_serve.bench import loops
from xlt_serve.bench.http_load import Endpoint, received
from xlt_serve.bench.loops import Reply, Sample
from xlt_serve.bench.texts import mixed
from xlt_serve.runtime.session import available_cores

CONNECTIONS = 8
OVER = 5.0
"""How many times its capacity a flood asks of the service."""
MOST_OPEN = 800
"""Connections of a flood at once: fewer than the service takes, or it would be about those."""
MIXES: dict[str, dict[int, float]] = {
    "1": {1: 1.0},
    "16": {16: 1.0},
    "256": {256: 1.0},
    "mixed": {1: 0.8, 16: 0.15, 256: 0.05},
}
"""Class of a flood → shares of its requests by how many texts they have."""


# Fairness.


async def heavy_load(target: Target) -> dict[str, Any]:
    """Eight connections, 1,000 items a request, closed loop. A refused client comes back after a
    moment. Items count by when they were answered."""
    endpoint = Endpoint(f"http://{HOST}:{target.port}", heavy_bodies(Assault(target)), HEAVY, 120)

    async def send(number: int) -> Reply:
        reply = await endpoint.send(number)
        if reply.status != 200:
            await asyncio.sleep(0.2)
        return reply

    begun = time.monotonic()
    run = await loops.closed(send, CONNECTIONS, target.seconds)
    await endpoint.aclose()
    items = sum(s.reply.items for s in run.samples if s.reply.status == 200)
    return {
        "per_second": items / run.seconds,
        "statuses": {str(status): n for status, n in loops.statuses(run).items()},
        "begun": begun,
        "ended": begun + run.seconds,
    }


async def fairness(seconds: float, runs: int) -> list[dict[str, Any]]:
    """Rows, one a run: light alone, heavy alone, both."""
    with standing() as (_, target):
        target = Target(target.port, target.kind, target.process, target.folder, seconds)
        async with light_client(target, rate=50):
            await asyncio.sleep(2)
        return [await _fair(target, seconds) for _ in range(runs)]


async def _fair(target: Target, seconds: float) -> dict[str, Any]:
    with Apart(heavy_load, target) as alone, Apart(heavy_load, target) as beside:
        await alone.ready()
        await beside.ready()
        async with light_client(target, rate=50) as quiet:
            await asyncio.sleep(seconds)
        alone.go()
        heavy = await alone.result(seconds + 130)
        before = await metrics(target)
        async with light_client(target, rate=50) as light:
            cpu = time.process_time()
            beside.go()
            both = await beside.result(seconds + 130)
            cpu = time.process_time() - cpu
        after = await metrics(target)
    run = numbers.largest(*(numbers.histogram(p, "xlt_run_seconds") for p in (before, after)))
    start, stop = light.at(both.value["begun"]), light.at(both.value["ended"])
    first = numbers.seen(quiet.run)
    attacked = numbers.seen(numbers.within(light.run, start, stop))
    return {
        "alone": first,
        "attacked": attacked,
        "longest_run_ms": None if run is None else [1000 * bound for bound in run],
        "heavy_alone": heavy.value["per_second"],
        "heavy_beside": both.value["per_second"],
        "heavy_kept": both.value["per_second"] / max(1e-9, heavy.value["per_second"]),
        "heavy_statuses": both.value["statuses"],
        "generator_cpu": (cpu + both.cpu) / both.seconds / available_cores(),
        "fair": fair(first["p99"], attacked["p99"], attacked["refused"], run),
    }


def fair(alone: float, attacked: float, refused: int, run: tuple[float, float] | None) -> str:
    """Whether nobody was refused and p99 (ms) is at most that alone and twice the longest run, of which
    we know the bucket."""
    if refused:
        return "no"
    if run is None or math.isnan(alone + attacked):
        return "n/a"
    if attacked <= alone + 2000 * run[0]:
        return "yes"
    return "within the bucket" if attacked <= alone + 2000 * run[1] else "no"


# Load shedding.


@dataclass(frozen=True)
class Flooding:
    """What a flood is to do; ``rate`` in requests a second."""

    target: Target
    mix: str
    rate: float
    seconds: float
    seed: int


@dataclass
class Flooded:
    """What came of it. ``last``: when the last request was sent."""

    statuses: dict[str, int]
    accepted: dict[int, list[float]]
    unhelpful: int
    lag_p99_ms: float
    last: float
    sent: int = 0
    errors: dict[str, int] = field(default_factory=dict)


def requests_of(
    mix: str, target: Target, count: int = 200, seed: int = 0
) -> list[tuple[bytes, int]]:
    """Bodies of a class of flood."""
    generator, texts = random.Random(seed), mixed(1024)
    sizes = generator.choices(list(MIXES[mix]), list(MIXES[mix].values()), k=count)
    out = []
    for size in sizes:
        start = generator.randrange(len(texts) - size)
        out.append((target.body(texts[start : start + size]), size))
    return out


def _endpoint(target: Target, mix: str, key: str = HEAVY, seed: int = 0) -> Endpoint:
    bodies = requests_of(mix, target, seed=seed)
    return Endpoint(f"http://{HOST}:{target.port}", bodies, key, timeout=60)


async def flood(asked: Flooding) -> Flooded:
    endpoint = _endpoint(asked.target, asked.mix, seed=asked.seed)
    begun = time.monotonic()
    run = await loops.open_loop(
        endpoint.send, asked.rate, asked.seconds, seed=asked.seed, patience=60, most=MOST_OPEN
    )
    await endpoint.aclose()
    lags = loops.lag(run)
    return Flooded(
        {str(status): n for status, n in loops.statuses(run).items()},
        numbers.by_size(run.samples),
        endpoint.unhelpful,
        numbers.percentile(lags, 99),
        begun + max((s.sent for s in run.samples), default=0.0),
        len(run.samples),
    )


async def capacity_load(target: Target, mix: str, seconds: float) -> float:
    endpoint = _endpoint(target, mix)
    run = await loops.closed(endpoint.send, CONNECTIONS, seconds)
    await endpoint.aclose()
    return numbers.capacity(run)


async def unloaded(target: Target, seconds: float, least: int) -> dict[int, list[float]]:
    """Milliseconds of a lone client's requests, by size."""
    samples: list[Sample] = []
    for mix in ("1", "16", "256"):
        endpoint = _endpoint(target, mix, LIGHT)
        run = await loops.closed(endpoint.send, 1, seconds, warm_up=0.3, least=least)
        await endpoint.aclose()
        samples += run.samples
    return numbers.by_size(samples)


async def shedding(
    seconds: float, runs: int, mixes: list[str], quick: bool
) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for number in range(runs):
        with standing() as (_, target):
            async with light_client(target, rate=50):
                await asyncio.sleep(1 if quick else 3)
            quiet = await unloaded(target, 1 if quick else 5, 5 if quick else 60)
            found: dict[str, Any] = {"unloaded": _p99(quiet)}
            for mix in mixes:
                found[mix] = await _shed(target, mix, seconds, number, quiet)
            out.append(found)
    return out


def _p99(times: dict[int, list[float]]) -> dict[str, float]:
    return {str(size): numbers.percentile(found, 99) for size, found in sorted(times.items())}


async def _shed(
    target: Target, mix: str, seconds: float, seed: int, quiet: dict[int, list[float]]
) -> dict[str, Any]:
    with Apart(capacity_load, target, mix, max(2.0, seconds / 3)) as measuring:
        await measuring.ready()
        measuring.go()
        able = (await measuring.result(180)).value
    await asyncio.sleep(1)
    asked = Flooding(target, mix, max(1.0, OVER * able), seconds, seed)
    with Apart(flood, asked) as flooding:
        await flooding.ready()
        flooding.go()
        await asyncio.sleep(0.9 * seconds)
        # The strictest of new clients has the flood's own key.
        async with (
            light_client(target, HEAVY, rate=20) as same,
            light_client(target, LIGHT, rate=20) as other,
        ):
            done = await flooding.result(seconds + 100)
            found: Flooded = done.value
            await asyncio.sleep(max(0.0, found.last + 5 - time.monotonic()))
    accepted = _p99(found.accepted)
    return {
        "capacity": able,
        "rate": asked.rate,
        "sent": found.sent,
        "statuses": found.statuses,
        "without_retry_after": found.unhelpful,
        "accepted_p99": accepted,
        "accepted": {str(size): len(times) for size, times in sorted(found.accepted.items())},
        "relative": {
            size: value / numbers.percentile(quiet.get(int(size), []), 99)
            for size, value in accepted.items()
        },
        "refused_after_same_key": numbers.refused_until(same.run, same.at(found.last)),
        "refused_after_other_key": numbers.refused_until(other.run, other.at(found.last)),
        "generator_cpu": done.cpu / done.seconds / available_cores(),
        "generator_lag_p99_ms": found.lag_p99_ms,
    }


# The death of a worker.


@dataclass
class Fates:
    """What became of requests: status, or how a connection ended, with its local port."""

    counts: Counter[str] = field(default_factory=Counter)
    lost: list[tuple[int, float, str]] = field(default_factory=list)


async def death_load(target: Target, clients: int) -> Fates:
    """Single requests, each on a connection of its own, so that every worker is asked."""
    fates, ends = Fates(), time.monotonic() + target.seconds
    texts = mixed(64)

    async def client(number: int) -> None:
        while time.monotonic() < ends:
            number += clients
            port = await _one(
                target, json.dumps({"texts": texts[number % 60 :][:4]}).encode(), fates
            )
            if port is None:
                await asyncio.sleep(0.05)

    await asyncio.gather(*(client(number) for number in range(clients)))
    return fates


async def _one(target: Target, body: bytes, fates: Fates) -> int | None:
    port: int = 0
    writer = None
    try:
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(HOST, target.port)
            port = int(writer.get_extra_info("sockname")[1])
            writer.write(head(len(body)) + body)
            status, _, _ = await received(reader)
        fates.counts[str(status)] += 1
        return port
    except (OSError, EOFError, ValueError) as error:
        fates.counts["lost"] += 1
        fates.lost.append((port, time.monotonic(), type(error).__name__))
        return None
    finally:
        if writer is not None:
            writer.close()


async def death(seconds: float) -> dict[str, Any]:
    """Kill one of two workers under load. Its own requests are known: it is stopped first, and its
    connections are listed."""
    with standing(workers=2) as (server, target):
        target = Target(target.port, target.kind, target.process, target.folder, seconds)
        before = workers(server.process.pid)
        with Apart(death_load, target, 6) as load:
            await load.ready()
            load.go()
            await asyncio.sleep(seconds / 4)
            victim = before[0]
            os.kill(victim, signal.SIGSTOP)
            own = {
                c.raddr.port
                for c in psutil.Process(victim).net_connections("tcp")
                if c.raddr and c.laddr.port == target.port
            }
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            back = None
            while time.monotonic() < killed + seconds and back is None:
                with contextlib.suppress(psutil.Error):
                    now = workers(server.process.pid)
                    if len(now) >= len(before) and victim not in now:
                        back = time.monotonic() - killed
                await asyncio.sleep(0.1)
            fates: Fates = (await load.result(seconds + 60)).value
        lost = [port for port, _, _ in fates.lost]
        return {
            "workers": len(before),
            "statuses": dict(fates.counts),
            "in_flight_on_it": len(own),
            "lost": len(lost),
            "lost_of_its_own": sum(port in own for port in lost),
            "lost_of_others": sum(port not in own for port in lost),
            "how": dict(Counter(how for _, _, how in fates.lost)),
            "new_worker_after": back,
        }
