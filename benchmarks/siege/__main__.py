"""What one bad client can do: ``python -m benchmarks.siege``.

For each attack a server is started, asked by a light client before, during and after, and attacked by a
process of its own. Then fairness between keys, load shedding, the death of a worker, bad requests, and
schemathesis. ``--on bentoml infinity``: the attacks that need nothing of ours on BentoML around a pipeline
and on infinity, with weights of the same shape. Everything stays on 127.0.0.1, and ends. What was measured is
written after each part: a run that is broken off, or ``--only``, keeps the rest of the file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.siege import floods, fuzz
from benchmarks.siege.attacks import ATTACKS
from benchmarks.siege.field import SERVERS, Plan, besieged
from benchmarks.siege.report import markdown
from xlt_serve.bench import machine

RESULTS = Path(__file__).parent.parent / "results"
Part = Callable[[argparse.Namespace], Awaitable[Any]]


async def _fairness(options: argparse.Namespace) -> Any:
    return await floods.fairness(4 if options.quick else 20, 1 if options.quick else 3)


async def _shedding(options: argparse.Namespace) -> Any:
    seconds, runs = (3.0, 1) if options.quick else (10.0, options.runs)
    return await floods.shedding(seconds, runs, list(floods.MIXES), options.quick)


async def _death(options: argparse.Namespace) -> Any:
    return await floods.death(8 if options.quick else 20)


async def _fuzz(options: argparse.Namespace) -> Any:
    return await fuzz.fuzz(2000 if options.quick else options.requests, options.seed)


async def _schemathesis(options: argparse.Namespace) -> Any:
    seconds = 15 if options.quick else 60 * options.minutes
    return await fuzz.described_api(seconds, options.seed)


PARTS: dict[str, Part] = {
    "fairness": _fairness,
    "shedding": _shedding,
    "death": _death,
    "fuzz": _fuzz,
    "schemathesis": _schemathesis,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.siege",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="parts or attacks; see --list")
    parser.add_argument("--list", action="store_true", help="names of parts and attacks")
    parser.add_argument(
        "--quick", action="store_true", help="seconds instead of minutes, to try it"
    )
    parser.add_argument(
        "--on", nargs="+", choices=SERVERS, default=SERVERS[:1], help="servers that are attacked"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "siege.json")
    parser.add_argument("--runs", type=int, default=10, help="of load shedding")
    parser.add_argument("--requests", type=int, default=50_000, help="bad ones")
    parser.add_argument("--minutes", type=float, default=10.0, help="of schemathesis")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.list:
        print("\n".join(["attacks", *PARTS, *ATTACKS]))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers are ended on every way out
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(options.out.read_text()) if options.out.is_file() else {}
    try:
        asyncio.run(run(options, results))
    except KeyboardInterrupt:
        print("broken off; what was measured is kept", file=sys.stderr)
    print(markdown(results))


async def run(options: argparse.Namespace, results: dict[str, Any]) -> None:
    attacks, parts = chosen(options.only)
    results["setting"] = setting(options.quick)
    for name in attacks:
        attack = ATTACKS[name]
        for kind in options.on:
            if kind != "xlt" and not attack.peers:
                continue
            say(f"{name}: {kind}")
            row = await besieged(attack, kind, Plan.of(options.quick))
            about = {"finding": attack.finding, "first": attack.first}
            results.setdefault("attacks", {}).setdefault(name, about)[kind] = row
            save(options.out, results)
    for name in parts:
        say(name)
        results[name] = await PARTS[name](options)
        save(options.out, results)


def chosen(only: list[str] | None) -> tuple[list[str], list[str]]:
    """Attacks and parts by their names; a name may be the beginning of several."""
    if only is None:
        return list(ATTACKS), list(PARTS)
    if "attacks" in only:
        return list(ATTACKS), [name for name in PARTS if name in only]
    attacks = [name for name in ATTACKS if name.startswith(tuple(only))]
    parts = [name for name in PARTS if name in only]
    if unknown := [
        one for one in only if one not in PARTS and not any(a.startswith(one) for a in ATTACKS)
    ]:
        raise SystemExit(f"{', '.join(unknown)}: no such part or attack; see --list")
    return attacks, parts


def setting(quick: bool) -> dict[str, Any]:
    here = machine.machine()
    kept = ("processor", "cores", "memory_gb", "python", "load_before", "packages")
    return {name: here[name] for name in kept} | {"quick": quick}


def save(out: Path, results: dict[str, Any]) -> None:
    out.write_text(json.dumps(results, indent=1) + "\n")
    out.with_suffix(".md").write_text(markdown(results), encoding="utf-8")


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
