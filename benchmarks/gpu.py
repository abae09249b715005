"""Latency of one bundle on the CPU, CUDA and TensorRT: ``python -m benchmarks.gpu BUNDLE``.

The same batches of the bundle's own buckets for each provider, warm-up left out, every run timed
from arrays in to arrays out (copies and synchronisation included). Percentiles, and how many times
faster than the CPU. Logits are compared with the CPU's on the way: a fast wrong answer is none.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xlt_serve import bundle as bundles
from xlt_serve.bench import stats
from xlt_serve.bench.grid import RunParts, batch, timed
from xlt_serve.bench.machine import processor, versions
from xlt_serve.bundle import Bundle
from xlt_serve.errors import UsageError, XltError
from xlt_serve.runtime.batching import BUDGET
from xlt_serve.runtime.gpu import providers
from xlt_serve.runtime.graph_io import GRAPHS, Feeds
from xlt_serve.runtime.open_graph import buckets_of, open_graph
from xlt_serve.runtime.session import Options, Session, available_cores
from xlt_serve.runtime.steps import Outputs

HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", metavar="BUNDLE", nargs="?")
    parser.add_argument(
        "--look", action="store_true", help="say what is there, and measure nothing"
    )
    parser.add_argument("--providers", default="cpu,cuda,cuda-graphs,tensorrt")
    parser.add_argument("--graphs", default="", help="default: all that the bundle has")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=None, metavar="DIR")
    parser.add_argument("--rows", default="1,8,32", help="as far as a length has them")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu.json")
    options = parser.parse_args(arguments)
    if options.look:
        print(json.dumps(look(options.device), indent=1))
        return 0
    if options.bundle is None:
        parser.error("needs a bundle")
    try:
        results = measure(options)
    except XltError as error:
        print(f"gpu: {error}", file=sys.stderr)
        return error.exit_code
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    options.out.with_suffix(".md").write_text(markdown(results), encoding="utf-8")
    print(markdown(results))
    return 0


def look(device: int) -> dict[str, Any]:
    """Each provider: that it can run here, or what is in its way."""
    out: dict[str, Any] = {"machine": machine(device), "packages": versions()}
    for name in providers.PROVIDERS:
        try:
            out[name] = providers.require(providers.runtime(), name, device)
        except XltError as error:
            out[name] = str(error)
    return out


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every graph on every provider. One that fails is written down; the others go on."""
    if options.repeats < 2:
        raise UsageError(f"--repeats {options.repeats}", "must be at least 2")
    bundle = bundles.load(options.bundle)
    wanted = options.providers.split(",")
    # What is missing is said at once, not after minutes of measuring the others.
    for name in wanted:
        providers.require(providers.runtime(), base(name), options.device)
    shapes = grid(bundle, [int(rows) for rows in options.rows.split(",")])
    rows, failed = [], []
    for graph in options.graphs.split(",") if options.graphs else bundle.manifest.graphs:
        batches = {shape: batch(bundle, *shape, graph) for shape in shapes}
        reference = open_graph(bundle, graph, None, BUDGET)
        expected = {shape: reference.run(feeds) for shape, feeds in batches.items()}
        for name in wanted:
            try:
                rows += list(measured(bundle, graph, name, options, batches, expected))
            except Exception as error:  # whatever CUDA has to say
                failed.append(f"{graph} on {name}: {error}")
                print(f"gpu: {failed[-1]}", file=sys.stderr)
    if not rows:
        raise UsageError("; ".join(failed), "nothing could be measured")
    return {
        "bundle": f"{bundle.manifest.name} {bundle.manifest.version}",
        "precision": bundle.manifest.graphs["plain"].precision,
        "machine": machine(options.device),
        "repeats": options.repeats,
        "rows": with_ratios(rows),
        "failed": failed,
    }


def measured(
    bundle: Bundle,
    graph: str,
    name: str,
    options: argparse.Namespace,
    batches: Mapping[tuple[int, int], Feeds],
    expected: Mapping[tuple[int, int], Outputs],
) -> Iterator[dict[str, Any]]:
    """A row for each shape of one graph on one provider."""
    session, start = opened(bundle, graph, name, options)
    logits = GRAPHS[graph].logits_of
    for shape, feeds in batches.items():
        given, wanted = logits(session.run(feeds)), logits(expected[shape])
        recorded = RunParts(session)
        # A run ends when its results are in the caller's memory, so it is synchronised.
        times = timed(
            lambda run=recorded.run, feeds=feeds: run(feeds),  # type: ignore[misc]
            seconds=0,
            warm_up=options.warm_up,
            wait=lambda: None,
            least=options.repeats,
        )
        row = {
            "provider": name,
            "graph": graph,
            "rows": shape[0],
            "length": shape[1],
            "ran": "; ".join(
                " ".join(f"{k} {v}" for k, v in one.items()) for one in session.ran(feeds)
            ),
            **summary(times),
            **recorded.medians(options.warm_up),
            "largest_difference": float(np.abs(given - wanted).max()),
            "same_labels": bool((given.argmax(-1) == wanted.argmax(-1)).all()),
            "start_s": start,
        }
        print(
            f"{name:12} {graph:10} {shape[0]:3} × {shape[1]:3}  {row['p50']:8.2f} ms",
            file=sys.stderr,
        )
        yield row


def base(name: str) -> str:
    return "cuda" if name == "cuda-graphs" else name


def grid(bundle: Bundle, wanted: Sequence[int]) -> list[tuple[int, int]]:
    """(rows, length) at every length of the bundle's buckets, rows as far as it runs them."""
    buckets = buckets_of(bundle, BUDGET)
    return [
        (n, length) for length in buckets.lengths for n in wanted if n <= buckets.rows[length][-1]
    ]


def opened(
    bundle: Bundle, graph: str, name: str, options: argparse.Namespace
) -> tuple[Session, float]:
    settings = Options(
        provider=base(name),
        device=options.device,
        cache=options.cache,
        cuda_graphs=name == "cuda-graphs",
        events=True,
    )
    begun = time.perf_counter()
    session = open_graph(bundle, graph, settings, BUDGET)
    return session, time.perf_counter() - begun


def summary(times: Sequence[float]) -> dict[str, float]:
    found = stats.summary(times)
    return {key: found[key] for key in ("p50", "p90", "p95", "p99", "max", "mean")}


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row with the CPU's median over its own, where the CPU was measured too."""

    def shape(row: dict[str, Any]) -> tuple[Any, ...]:
        return row.get("graph", "plain"), row["rows"], row["length"]

    cpu = {shape(row): row["p50"] for row in rows if row["provider"] == "cpu"}
    for row in rows:
        other = cpu.get(shape(row))
        row["times_faster_than_cpu"] = other / row["p50"] if other else None
    return rows


def machine(device: int) -> dict[str, Any]:
    ort = providers.runtime()
    out = {
        "processor": processor(),
        "cores": available_cores(),
        "python": platform.python_version(),
        "onnxruntime": ort.__version__,
        "gpu": "none",
    }
    try:
        fields = "name,driver_version,compute_cap,clocks.sm,clocks.mem,memory.total"
        out["gpu"] = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", str(device)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        out["tensorrt"] = providers.tensorrt_version()
    except (OSError, subprocess.CalledProcessError, XltError):
        pass  # the report then says that there is none
    return out


def markdown(results: dict[str, Any]) -> str:
    found = results["machine"]
    lines = [
        f"# Latency of {results['bundle']} ({results['precision']})",
        "",
        f"GPU: {found['gpu']}; {found['cores']} cores of {found['processor']}; onnxruntime "
        f"{found['onnxruntime']}, TensorRT {found.get('tensorrt', 'none')}; {results['repeats']} runs "
        "each after warm-up, milliseconds from arrays in to arrays out.",
        "",
        "| provider | graph | rows × length | p50 | p90 | p95 | p99 | max | × CPU | largest difference | labels |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        ratio = row["times_faster_than_cpu"]
        lines.append(
            f"| {row['provider']} | {row['graph']} | {row['rows']} × {row['length']} | "
            + " | ".join(f"{row[key]:.2f}" for key in ("p50", "p90", "p95", "p99", "max"))
            + f" | {f'{ratio:.1f}' if ratio else '–'} | {row['largest_difference']:.1e} | "
            + ("same |" if row["same_labels"] else "differ |")
        )
    starts = {row["provider"]: row["start_s"] for row in results["rows"]}
    lines += [
        "",
        "Start: " + ", ".join(f"{name} {s:.1f} s" for name, s in starts.items()) + ".",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
