"""A served endpoint: its latency under rising load."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xlt_serve.bench import http_load as http
from xlt_serve.bench import loops
from xlt_serve.bench.compare import point_name
from xlt_serve.bench.server_process import PATIENCE, free_port, started
from xlt_serve.errors import DataError
from xlt_serve.modes import MODES

SHARES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1)
"""Rates of the open loop where none are given, as shares of the closed loop's best."""
BUSY = 0.5
"""Share of a core above which the load generator disturbs what it measures."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Load:
    """``clients``: of the closed loop; ``rates``: of the open one, or ``earlier`` those of another
    run, by mode; neither: shares of the closed one's best. ``items``: texts in a request;
    ``options``: of the requests of each mode."""

    texts: Sequence[Any]
    clients: Sequence[int] = (1, 8, 32, 128)
    rates: Sequence[float] = ()
    modes: Sequence[str] = ("plain",)
    items: int = 1
    seconds: float = 10.0
    warm_up: float = 2.0
    least: int = 1000
    pair: bool = False
    key: str | None = None
    api: str = "xlt"
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    earlier: Mapping[str, Sequence[float]] = field(default_factory=dict)
    seed: int = 0


def measure(url: str, load: Load, say: Say) -> tuple[list[dict[str, Any]], list[str]]:
    """Points of both loops for each mode, and what a reader should know of them."""
    return asyncio.run(_measure(url, load, say))


async def _measure(url: str, load: Load, say: Say) -> tuple[list[dict[str, Any]], list[str]]:
    points: list[dict[str, Any]] = []
    notes: list[str] = []
    for mode in load.modes:
        options = ({} if mode == "plain" else {"mode": mode}) | load.options.get(mode, {})
        with_own = mode in MODES and MODES[mode].translates
        requests = http.bodies(load.texts, load.items, _field(load), options, with_own)
        endpoint = http.Endpoint(url, requests, load.key)
        try:
            if problem := await _refused(endpoint, url, requests[0][0]):
                if mode == load.modes[0]:
                    raise DataError(
                        url,
                        f"can't be measured in mode {mode}: {problem}",
                        "leave the mode out, or serve a bundle that has it",
                    )
                notes.append(f"mode {mode} was not measured: {problem}")
                continue
            if with_own:
                notes.append(f"mode {mode}: texts were sent as their own translations")
            await _mode(endpoint, mode, load, points, notes, say)
        finally:
            await endpoint.aclose()
    return points, notes


async def _mode(
    endpoint: http.Endpoint,
    mode: str,
    load: Load,
    points: list[dict[str, Any]],
    notes: list[str],
    say: Say,
) -> None:
    best = 0.0
    for clients in load.clients:
        run = await loops.closed(endpoint.send, clients, load.seconds, load.warm_up, load.least)
        point = loops.described(run, loop="closed", mode=mode, clients=clients)
        best = max(best, point["requests_per_second"])
        _add(point, points, notes, say)
    given = load.rates or load.earlier.get(mode, ())
    for rate in given or [round(best * share, 2) for share in SHARES]:
        if rate <= 0:
            continue
        run = await loops.open_loop(endpoint.send, rate, load.seconds, load.warm_up, load.seed)
        point = loops.described(run, loop="open", mode=mode, rate=rate)
        # Measured by those that came, which chance makes more or fewer than the rate.
        came = point["requests"] / load.seconds
        point["saturated"] = point["requests_per_second"] < 0.9 * came
        _add(point, points, notes, say)
        if point["saturated"] and not given:
            break  # beyond this, latency only says how long one has waited


def _add(point: dict[str, Any], points: list[dict[str, Any]], notes: list[str], say: Say) -> None:
    points.append(point)
    say(line(point))
    if point["generator_cpu"] > BUSY:
        notes.append(
            f"{point_name(point)}: the load generator took {point['generator_cpu']:.0%} of a core"
        )
    if point["loop"] == "open" and point["generator_lag_p99_ms"] > 20:
        notes.append(
            f"{point_name(point)}: requests were sent up to {point['generator_lag_p99_ms']:.0f} ms late "
            "(p99); that is in the latencies"
        )


def _field(load: Load) -> str:
    """Where a request has its texts."""
    if load.api == "infinity":
        return "input"
    return "pairs" if load.pair else "texts"


def line(point: dict[str, Any]) -> str:
    found = point["latency_ms"]
    times = (
        f"{point['requests_per_second']:9.1f}/s  p50 {found['p50']:8.2f}  p95 {found['p95']:8.2f}  "
        f"p99 {found['p99']:8.2f}  max {found['max']:8.2f} ms"
        if found["count"]
        else "no answer with status 200"
    )
    return (
        f"{point_name(point):28} {times}"
        + ("  errors " + json.dumps(point["errors"]) if point["errors"] else "")
        + ("  saturated" if point.get("saturated") else "")
    )


async def _refused(endpoint: http.Endpoint, url: str, body: bytes) -> str:
    """One request beforehand: an address, a mode or an option that is wrong is said at once."""
    try:
        status, answer = await asyncio.wait_for(endpoint.post(body), 60)
    except (OSError, EOFError, TimeoutError, ValueError) as error:
        raise DataError(
            url,
            f"does not answer ({error or type(error).__name__})",
            "is it running? see xlt serve",
        ) from None
    if status == 200:
        return _plainly(answer)
    return f"status {status}, {answer[:300].decode('utf-8', 'replace')}"


def _plainly(answer: bytes) -> str:
    """Why a text was predicted without its translation: that is mode plain by another name."""
    try:
        found = json.loads(answer)["predictions"]
    except (ValueError, KeyError, TypeError):
        return ""  # not of our service
    for prediction in found:
        reason = prediction.get("reason")
        if reason or prediction.get("mixed") is False:
            why = f" ({reason['message']})" if reason else ""
            return f"it answers without the translation{why}"
    return ""


@contextlib.contextmanager
def serving(bundle: str, provider: str, patience: float = PATIENCE) -> Iterator[str]:
    """The address of a service of this bundle, started for the occasion."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="xlt-bench-") as folder:
        log = Path(folder) / "service.log"
        command = _command(bundle, provider, port)
        with started(bundle, command, port, log, patience=patience) as server:
            yield server.url


def _command(bundle: str, provider: str, port: int) -> list[str]:
    call = [sys.executable, "-m", "xlt_serve.cli", "serve", "--bundle", bundle]
    return [*call, "--port", str(port), "--provider", provider]
