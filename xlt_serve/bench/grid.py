"""One graph by itself: every number of rows × length, on each provider.

A run is timed from arrays in to arrays out, on the host's clock. On a GPU that is right only if
nothing is under way when the clock starts and nothing when it stops: the results are copied back
before a run returns, and the device is synchronised before each run besides. Beside it stand the copies
alone, and the run by events on the session's own stream.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from xlt_serve.bench.stats import is_stable, summary
from xlt_serve.bundle import Bundle
from xlt_serve.errors import DependencyError, UsageError
from xlt_serve.runtime.batching import BUDGET
from xlt_serve.runtime.gpu import providers
from xlt_serve.runtime.gpu.binding import Phases
from xlt_serve.runtime.graph_io import Feeds
from xlt_serve.runtime.open_graph import described, io_of, open_graph
from xlt_serve.runtime.session import Options
from xlt_serve.runtime.steps import Outputs


def require(names: Sequence[str], device: int) -> None:
    """What is missing is said at once, not after minutes, and never measured on the CPU instead."""
    for name in names:
        try:
            providers.require(providers.runtime(), name, device)
        except DependencyError as error:
            raise UsageError(
                f"--provider {name}: {error.value}", error.rule, error.remedy
            ) from None


def shapes(rows: Sequence[int], lengths: Sequence[int], longest: int) -> list[tuple[int, int]]:
    """Those that the model takes."""
    if wrong := [n for n in (*rows, *lengths) if n < 1]:
        raise UsageError(f"{wrong[0]}", "rows and lengths must be at least 1")
    kept = [(n, length) for length in lengths if length <= longest for n in rows]
    if not kept:
        raise UsageError(
            f"--lengths {','.join(map(str, lengths))}", f"the bundle reads at most {longest} tokens"
        )
    return kept


def measure(
    bundle: Bundle,
    provider: str,
    wanted: Sequence[tuple[int, int]],
    *,
    graph: str = "plain",
    threads: int = 0,
    device: int = 0,
    seconds: float = 2.0,
    warm_up: int = 10,
) -> tuple[list[dict[str, Any]], str]:
    """A point for each shape, and the provider that was really active. ``ran``: what ran for the shape
    that was asked for: on GPUs it is padded to a bucket, and cut where a bucket holds fewer rows."""
    options = Options(threads=threads, provider=provider, device=device, events=True)
    begun = time.perf_counter()
    session = open_graph(bundle, graph, options, BUDGET)
    start = time.perf_counter() - begun
    wait = synchroniser() if provider != "cpu" else _nothing
    points = []
    for rows, length in wanted:
        feeds = batch(bundle, rows, length, graph)
        phases = RunParts(session)
        times = timed(lambda feeds=feeds, run=phases.run: run(feeds), seconds, warm_up, wait)  # type: ignore[misc]
        found = summary(times)
        points.append(
            {
                "provider": provider,
                "precision": bundle.manifest.graphs[graph].precision,
                **({} if graph == "plain" else {"graph": graph}),
                "rows": rows,
                "length": length,
                "ran": [dict(sizes) for sizes in session.ran(feeds)],
                **phases.medians(warm_up),
                "latency_ms": found,
                "stable": is_stable(times),
                "tokens_per_second": round(1000 * rows * length / found["mean"], 1),
                "start_s": round(start, 3),
            }
        )
    return points, session.provider


def timed(
    run: Callable[[], object],
    seconds: float,
    warm_up: int,
    wait: Callable[[], None],
    least: int = 30,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Milliseconds of single runs, until the 99th percentile is stable or the time is over."""
    for _ in range(warm_up):
        run()
    out: list[float] = []
    end = clock() + seconds
    while True:
        wait()
        begun = clock()
        run()
        now = clock()
        out.append(1000 * (now - begun))
        if len(out) >= least and (now >= end or (len(out) % 500 == 0 and is_stable(out))):
            return out


class RunParts:
    """A session whose runs leave their parts behind: copies, and the device's own time."""

    def __init__(self, session: Any) -> None:
        self.session, self.parts = session, list[Phases]()

    def run(self, feeds: Feeds) -> Outputs:
        out: Outputs = self.session.run(feeds)
        if (found := getattr(self.session, "phases", None)) is not None:
            self.parts.append(found)
        return out

    def medians(self, warm_up: int) -> dict[str, float]:
        """In milliseconds, of what follows the warm-up; nothing where there is no device. Where a batch
        ran in several pieces, of the last of them."""
        out = {}
        for name in ("copy_in", "run", "copy_out", "device"):
            values = [getattr(part, name) for part in self.parts[warm_up:]]
            if values and None not in values:
                out[f"{name}_ms"] = round(statistics.median(values), 4)
        return out


def batch(bundle: Bundle, rows: int, length: int, graph: str = "plain") -> Feeds:
    """Random ids, all positions real: the slowest that the shape can be."""
    io = io_of(bundle, graph, described(bundle, graph))
    return io.example(io.sizes(rows, length))


def synchroniser(load: Callable[[str], Any] = ctypes.CDLL) -> Callable[[], None]:
    """A function that returns when the GPU has nothing left to do."""
    library = load(f"libcudart.so.{providers.cuda_major(providers.runtime())}")

    def wait() -> None:
        if code := library.cudaDeviceSynchronize():
            raise DependencyError("cudaDeviceSynchronize", f"failed with {code}", "see nvidia-smi")

    return wait


def _nothing() -> None:
    pass
