"""The report of ``benchmarks.service``: goals, and a table of every load."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.markdown import table

GENERATOR_LIMIT = 0.1
"""Share of all cores above which the load generator spoils a measurement."""


def markdown(results: dict[str, Any]) -> str:
    lines = ["# The service against its peers", ""]
    tokens = results["setting"]["tokens"]
    lines.append(
        f"{results['setting']['texts']} texts in 21 languages, tokens: mean {tokens['mean']:.0f}, median"
        f" {tokens['p50']:.0f}, p90 {tokens['p90']:.0f}, p99 {tokens['p99']:.0f};"
        f" {results['setting']['cores']} cores. Means over rounds; latencies in ms."
    )
    lines += ["", *table(["", "goal", "measured"], goals(results))]
    if "peers" in results:
        lines += ["", *_closed_table(results["peers"]["rounds"])]
    for part in ("lone", "start", "memory"):
        if part in results:
            shown = ", ".join(
                f"{name} {value:.3g}"
                for name, value in results[part].items()
                if not isinstance(value, list)
            )
            lines += ["", f"**{part}**: {shown}"]
    return "\n".join(lines) + "\n"


def goals(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What is wanted of the service, and what it does: ratios of one run."""
    out = []
    if "peers" in results:
        rounds = results["peers"]["rounds"]
        best = {name: _best(rounds, name) for found in rounds for name in found}
        others = {
            name: (rate, p99)
            for name, (rate, p99) in best.items()
            if rate and not name.startswith(("xlt", "bare"))
        }
        mine, half = best["xlt int8"], best["xlt fp32"]
        torch = others.get("infinity torch")
        if torch:
            out.append(("int8 to infinity's torch engine", "≥ 5", f"{mine[0] / torch[0]:.2f}"))
            out.append(("fp32 to it", "≥ 1.2", f"{half[0] / torch[0]:.2f}"))
            for name, own in (("int8", mine), ("fp32", half)):
                worst = max(own[1][load] / torch[1][load] for load in own[1] if load in torch[1])
                out.append((f"its p99 to {name}'s, worst load", "≥ 1", f"{1 / worst:.2f}"))
        if others:
            name = max(others, key=lambda other: others[other][0])
            out.append(
                (f"int8 to the best peer ({name})", "≥ 2", f"{mine[0] / others[name][0]:.2f}")
            )
        for precision, own in (("int8", mine), ("fp32", half)):
            share = own[0] / best[f"bare {precision}"][0]
            out.append((f"{precision} to the bare session", "≥ .85", f"{share:.2f}"))
        wasted = [
            (row["padding_waste"], clients)
            for found in rounds
            for clients, row in found["xlt int8"]["closed"].items()
        ]
        share, clients = max(wasted)
        out.append((f"padding at worst ({clients} clients)", "≤ .10", f"{share:.3f}"))
    for part, key, name, goal in (
        ("lone", "overhead_ms", "a lone request over the session, ms", "≤ 3"),
        ("start", "difference", "ready after an empty BentoML service, s", "≤ 3"),
        ("memory", "growth_after_first_tenth", "memory at the end to a tenth of the way", "flat"),
    ):
        if part in results:
            out.append((name, goal, f"{results[part][key]:.2f}"))
    return out


def _best(rounds: list[dict[str, Any]], name: str) -> tuple[float, dict[str, float]]:
    """The most texts a second, and the p99 of each closed load; means over rounds."""
    rows = [found[name] for found in rounds if name in found and "failed" not in found[name]]
    if not rows:
        return 0.0, {}
    if "closed" not in rows[0]:
        return statistics.mean(row["per_second"] for row in rows), {}
    loads = rows[0]["closed"]

    def mean(load_: str, key: str) -> float:
        return statistics.mean(row["closed"][load_][key] for row in rows if load_ in row["closed"])

    return max(mean(load_, "per_second") for load_ in loads), {x: mean(x, "p99") for x in loads}


def _closed_table(rounds: list[dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for found in rounds for name in found))
    lines = [
        "| server | load | texts/s | p50 | p99 | padding | answers other than 200 | generator |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        rows = [found[name] for found in rounds if name in found and "failed" not in found[name]]
        if not rows:
            lines.append(f"| {name} | did not start | | | | | | |")
            continue
        if "closed" not in rows[0]:
            mean = statistics.mean(row["per_second"] for row in rows)
            lines.append(f"| {name} | perfect batches | {mean:.1f} | | | | | |")
            continue
        for kind, unit in (("closed", "clients"), ("open", "per second")):
            loads = list(dict.fromkeys(load for row in rows for load in row[kind]))
            for load_ in loads:
                there = [row[kind][load_] for row in rows if load_ in row[kind]]
                lines.append(_row(name, f"{load_} {unit}", there))
    return lines


def _row(name: str, load_: str, there: list[dict[str, Any]]) -> str:
    def mean(key: str) -> float:
        return statistics.mean(row[key] for row in there)

    other = sum(n for row in there for status, n in row["statuses"].items() if status != "200")
    wasted = f"{mean('padding_waste'):.3f}" if "padding_waste" in there[0] else ""
    cpu = max(row["generator_cpu"] for row in there)
    flag = " **invalid**" if cpu > GENERATOR_LIMIT else ""
    return (
        f"| {name} | {load_} | {mean('per_second'):.1f} | {1000 * mean('p50'):.0f} |"
        f" {1000 * mean('p99'):.0f} | {wasted} | {other} | {cpu:.3f}{flag} |"
    )
