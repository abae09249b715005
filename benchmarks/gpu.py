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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from xlt_serve import bundle as bundles
from xlt_serve.bench import stats
from xlt_serve.bench.grid import batch, timed
from xlt_serve.bench.machine import processor
from xlt_serve.bundle import Bundle
from xlt_serve.errors import UsageError, XltError
from xlt_serve.runtime.batching import BUDGET
from xlt_serve.runtime.gpu import providers
from xlt_serve.runtime.open_graph import buckets_of, open_graph
from xlt_serve.runtime.session import Options, Session, available_cores

HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", metavar="BUNDLE")
    parser.add_argument("--providers", default="cpu,cuda,cuda-graphs,tensorrt")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=None, metavar="DIR")
    parser.add_argument("--rows", default="1,8,32", help="as far as a length has them")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu.json")
    options = parser.parse_args(arguments)
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


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.repeats < 2:
        raise UsageError(f"--repeats {options.repeats}", "must be at least 2")
    bundle = bundles.load(options.bundle)
    wanted = options.providers.split(",")
    # What is missing is said at once, not after minutes of measuring the others.
    for name in wanted:
        providers.require(providers.runtime(), base(name), options.device)
    shapes = grid(bundle, [int(rows) for rows in options.rows.split(",")])
    batches = {shape: batch(bundle, *shape) for shape in shapes}
    reference = open_graph(bundle, "plain", None, BUDGET)
    expected = {shape: reference.run(feeds)["logits"] for shape, feeds in batches.items()}
    rows = []
    for name in wanted:
        session, start = opened(bundle, name, options)
        for shape, feeds in batches.items():
            given = session.run(feeds)["logits"]
            # A run ends when its results are in the caller's memory, so it is synchronised.
            times = timed(
                lambda session=session, feeds=feeds: session.run(feeds),  # type: ignore[misc]
                seconds=0,
                warm_up=options.warm_up,
                wait=lambda: None,
                least=options.repeats,
            )
            rows.append(
                {
                    "provider": name,
                    "rows": shape[0],
                    "length": shape[1],
                    **summary(times),
                    "largest_difference": float(np.abs(given - expected[shape]).max()),
                    "same_labels": bool((given.argmax(1) == expected[shape].argmax(1)).all()),
                    "start_s": start,
                }
            )
            print(
                f"{name:12} {shape[0]:3} × {shape[1]:3}  {rows[-1]['p50']:8.2f} ms", file=sys.stderr
            )
    return {
        "bundle": f"{bundle.manifest.name} {bundle.manifest.version}",
        "precision": bundle.manifest.graphs["plain"].precision,
        "machine": machine(options.device),
        "repeats": options.repeats,
        "rows": with_ratios(rows),
    }


def base(name: str) -> str:
    return "cuda" if name == "cuda-graphs" else name


def grid(bundle: Bundle, wanted: Sequence[int]) -> list[tuple[int, int]]:
    """(rows, length) at every length of the bundle's buckets, rows as far as it runs them."""
    buckets = buckets_of(bundle, BUDGET)
    return [
        (n, length) for length in buckets.lengths for n in wanted if n <= buckets.rows[length][-1]
    ]


def opened(bundle: Bundle, name: str, options: argparse.Namespace) -> tuple[Session, float]:
    settings = Options(provider=base(name), device=options.device, cache=options.cache)
    begun = time.perf_counter()
    session = open_graph(
        bundle, "plain", replace(settings, cuda_graphs=name == "cuda-graphs"), BUDGET
    )
    return session, time.perf_counter() - begun


def summary(times: Sequence[float]) -> dict[str, float]:
    found = stats.summary(times)
    return {key: found[key] for key in ("p50", "p90", "p95", "p99", "max", "mean")}


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row with the CPU's median over its own, where the CPU was measured too."""
    cpu = {(row["rows"], row["length"]): row["p50"] for row in rows if row["provider"] == "cpu"}
    for row in rows:
        other = cpu.get((row["rows"], row["length"]))
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
        "| provider | rows × length | p50 | p90 | p95 | p99 | max | × CPU | largest difference | labels |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        ratio = row["times_faster_than_cpu"]
        lines.append(
            f"| {row['provider']} | {row['rows']} × {row['length']} | "
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
