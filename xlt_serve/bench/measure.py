"""A run of ``xlt bench``: measure, and put it together as the schema says."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xlt_serve import bundle as bundles
from xlt_serve.bench import grid, nvml, peers, served, texts
from xlt_serve.bench.compare import point_name
from xlt_serve.bench.machine import machine, warnings
from xlt_serve.bench.served import Load, Say
from xlt_serve.bundle import Bundle
from xlt_serve.errors import UsageError

SCHEMA = Path(__file__).parent / "schema.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """``serve``: also start a service of the bundle and measure that; ``against``: peers."""

    target: str | None
    providers: Sequence[str] = ("cpu",)
    rows: Sequence[int] = (1, 8, 32)
    lengths: Sequence[int] = (16, 32, 64, 128)
    threads: int = 0
    devices: Sequence[int] = (0,)
    graphs: Sequence[str] = ("plain",)
    seconds: float = 2.0
    serve: bool = False
    load: Load = field(default_factory=lambda: Load(texts.mixed(512)))
    against: Sequence[str] = ()
    checkpoint: Path | None = None


def is_url(target: str | None) -> bool:
    return bool(target) and str(target).startswith(("http://", "https://"))


@dataclass(slots=True)
class Measured:
    """What a run has found so far; ``target``: what was measured."""

    target: str
    points: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    providers: list[str] = field(default_factory=list)

    def add(self, points: list[dict[str, Any]], notes: list[str]) -> None:
        self.points += points
        self.notes += notes


def run(plan: Plan, say: Say) -> dict[str, Any]:
    """A report as in ``schema.json``."""
    here = machine()
    with nvml.watched(plan.devices[0]) as gpu:
        found = _of_url(plan, say) if is_url(plan.target) else _of_bundle(plan, say)
    return {
        "format": 1,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "target": found.target,
        "texts": texts.lengths([t if isinstance(t, str) else " ".join(t) for t in plan.load.texts]),
        "machine": here,
        "gpu": gpu or None,
        "providers": found.providers,
        "settings": {
            "clock": "host, from request or arrays in to answer or arrays out, device synchronised",
            "seconds": plan.load.seconds if is_url(plan.target) or plan.serve else plan.seconds,
            "threads": plan.threads,
            "items_per_request": plan.load.items,
            "warm_up_s": plan.load.warm_up,
            "seed": plan.load.seed,
        },
        "points": found.points,
        "notes": list(dict.fromkeys([*warnings(here), *found.notes])),
    }


def _of_url(plan: Plan, say: Say) -> Measured:
    found = Measured(str(plan.target))
    found.add(*served.measure(found.target, plan.load, say))
    return found


def _of_bundle(plan: Plan, say: Say) -> Measured:
    # Everything that is wrong is said before anything is measured.
    wanted = peers.chosen(plan.against)
    for device in plan.devices:
        grid.require(plan.providers, device)
    bundle = bundles.load(plan.target)
    shapes = grid.shapes(plan.rows, plan.lengths, bundle.manifest.max_length)
    found = Measured(f"{bundle.manifest.name} {bundle.manifest.version}")
    for provider, device, graph in _grids(plan, bundle):
        points, active = grid.measure(
            bundle,
            provider,
            shapes,
            graph=graph,
            threads=plan.threads,
            device=device,
            seconds=plan.seconds,
        )
        if len(plan.devices) > 1 and provider != "cpu":
            points = [{**point, "device": device} for point in points]
        found.points += points
        if active not in found.providers:
            found.providers.append(active)
        for point in points:
            say(_line(point))
    if unstable := [point for point in found.points if not point["stable"]]:
        found.notes.append(
            f"{len(unstable)} of {len(found.points)} shapes have a p99 whose interval is wider than "
            "a tenth of it: give --seconds more"
        )
    if wanted:
        checkpoint = plan.checkpoint or Path()
        found.add(*peers.measure(bundle, checkpoint, wanted, shapes, plan.threads, say))
    if plan.serve:
        with served.serving(str(bundle.path), plan.providers[0]) as url:
            found.add(*served.measure(url, plan.load, say))
    return found


def _grids(plan: Plan, bundle: Bundle) -> Iterator[tuple[str, int, str]]:
    """(provider, GPU, graph) of each grid."""
    if unknown := sorted(set(plan.graphs) - {*bundle.manifest.graphs, "all"}):
        known = ", ".join(bundle.manifest.graphs)
        raise UsageError(f"--graphs {unknown[0]}", f"is none of the bundle's: {known}")
    graphs = bundle.manifest.graphs if "all" in plan.graphs else plan.graphs
    for provider in plan.providers:
        for device in plan.devices if provider != "cpu" else plan.devices[:1]:
            for graph in graphs:
                yield provider, device, graph


def write(report: dict[str, Any], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1, ensure_ascii=False)
    bundles.write_whole(file, f"{text}\n".encode())


def _line(point: dict[str, Any]) -> str:
    found = point["latency_ms"]
    return (
        f"{point_name(point):28} {point['tokens_per_second']:9,.0f} tok/s  p50 {found['p50']:8.2f}  "
        f"p95 {found['p95']:8.2f}  p99 {found['p99']:8.2f}  max {found['max']:8.2f} ms"
        + ("" if point["stable"] else "  (p99 not stable)")
    )
