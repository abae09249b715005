"""Build a bundle's TensorRT engines before anyone waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xlt_serve.bundle import Bundle
from xlt_serve.runtime.batching import BUDGET
from xlt_serve.runtime.gpu import tensorrt
from xlt_serve.runtime.gpu.buckets import Buckets
from xlt_serve.runtime.gpu.tensorrt import EngineCache
from xlt_serve.runtime.graph_io import GraphIO
from xlt_serve.runtime.open_graph import buckets_of, described, engine_of, io_of, open_graph
from xlt_serve.runtime.session import Options, Session


@dataclass(frozen=True, slots=True)
class Built:
    """``milliseconds``: of one run at each (rows, length), the second."""

    graph: str
    cache: EngineCache
    reused: bool
    seconds: float
    milliseconds: dict[tuple[int, int], float]


def build(
    bundle: Bundle, graphs: Sequence[str], options: Options, budget: int = BUDGET
) -> Iterator[Built]:
    """Open each graph, which builds its engine unless it is there, and run every bucket."""
    found = {graph: described(bundle, graph) for graph in graphs}
    refuse_unfit(bundle, graphs)
    buckets = buckets_of(bundle, budget)
    for graph in graphs:
        _, cache = engine_of(bundle, graph, options, buckets)
        reused = cache.context.is_file()
        begun = time.perf_counter()
        session = open_graph(bundle, graph, options, budget)
        seconds = time.perf_counter() - begun
        timed = run_buckets(session, io_of(bundle, graph, found[graph]), buckets)
        yield Built(graph, cache, reused, seconds, timed)


def refuse_unfit(bundle: Bundle, graphs: Sequence[str]) -> None:
    """What is wrong with the bundle is said before a GPU is looked for."""
    for graph in graphs:
        described(bundle, graph)
        tensorrt.require_precision(bundle, graph)


def run_buckets(
    session: Session, io: GraphIO[Any], buckets: Buckets
) -> dict[tuple[int, int], float]:
    """(rows, length) → milliseconds of the second run; the first allocates."""
    out: dict[tuple[int, int], float] = {}
    for rows, length in buckets:
        feeds = io.example(io.sizes(rows, length))
        session.run(feeds)
        begun = time.perf_counter()
        session.run(feeds)
        out[rows, length] = 1000 * (time.perf_counter() - begun)
    return out


def report(built: Built) -> str:
    """What was built, where, how large, how long it took, how fast it runs."""
    files = built.cache.files()
    size = sum(file.stat().st_size for file in files)
    done = "found" if built.reused else "built"
    lines = [f"{built.graph}: {done} in {built.seconds:.1f} s, {size / 1e6:.1f} MB"]
    lines += [f"  {file}" for file in files]
    lines += [
        f"  {rows:3} × {length:3}  {ms:8.2f} ms"
        for (rows, length), ms in built.milliseconds.items()
    ]
    return "\n".join(lines)
