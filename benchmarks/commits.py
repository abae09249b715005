"""Another commit against this one, served in turns: ``python -m benchmarks.commits 84d07e7``.

Three services run at once, and one at a time is asked: the other commit, this one, and the other once
more. The two services of one commit show how far figures of the same code lie apart. For each round
and mode: the median latency of a lone client, and of a closed loop the answers a second and the
processor time that an answer took, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.markdown import table
from xlt_serve.bench.http_load import bodies, under_load
from xlt_serve.bench.loops import closed, statuses, times
from xlt_serve.bench.server_process import ServerProcess, free_port, started

ROOT = Path(__file__).parent.parent
TEXTS = [
    "Die Mannschaft gewann das Finale nach Verlängerung.",
    "El gobierno anunció nuevas medidas para la economía.",
    "Scientists have found water on the surface of the moon.",
    "पुलिस ने शहर में सुरक्षा बढ़ा दी है।",
]
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "smoothed": {"mode": "smoothed", "seed": 1, "samples": 24},
    "paired": {"mode": "paired", "bundle": "topics-paired", "translations": ["A match was won."]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lone", type=float, default=1.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a closed loop")
    parser.add_argument("--modes", nargs="+", choices=list(REQUESTS), default=list(REQUESTS))
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "commits")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(checked_out(options.commit))
        servers = {
            name: stack.enter_context(served(folder, name))
            for name, folder in (("other", other), ("this", ROOT), ("again", other))
        }
        rounds = [measured(servers, options, number) for number in range(options.rounds)]
    found = {"commit": options.commit, "clients": options.clients, "rounds": rounds}
    found["summary"] = {mode: summary(rounds, mode) for mode in options.modes}
    options.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    text = report(found)
    options.out.with_suffix(".md").write_text(text)
    print(text)


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "other"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(place), commit], check=True)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True)


@contextlib.contextmanager
def served(folder: Path, name: str) -> Iterator[ServerProcess]:
    port = free_port()
    command = [sys.executable, "-m", "xlt_serve.cli", "serve"]
    environment = os.environ | {"PYTHONPATH": str(folder), "BENTOML_DO_NOT_TRACK": "true"}
    with (
        tempfile.TemporaryDirectory() as state,
        started(
            name,
            [*command, "--port", str(port)],
            port,
            Path(state) / "log",
            environment=environment | {"XLT_STATE": state},
            folder=folder,
        ) as server,
    ):
        yield server


def measured(
    servers: dict[str, ServerProcess], options: argparse.Namespace, number: int
) -> dict[str, Any]:
    """One round; who is asked first changes from round to round."""
    names = list(servers)
    turn = names[number % len(names) :] + names[: number % len(names)]
    found: dict[str, Any] = {mode: {} for mode in options.modes}
    for mode in options.modes:
        sent = bodies(TEXTS, 1, "texts", REQUESTS[mode])
        for name in turn:
            url = f"{servers[name].url}/classify"
            lone = under_load(url, sent, lambda send: closed(send, 1, options.lone, 0.2))
            before = processor_seconds(servers[name])
            loop = under_load(
                url, sent, lambda send: closed(send, options.clients, options.seconds)
            )
            spent = processor_seconds(servers[name]) - before
            refused = {status for run in (lone, loop) for status in statuses(run)} - {200}
            if refused:
                raise SystemExit(f"{name} answered {mode} requests with {sorted(refused)}")
            found[mode][name] = {
                "lone_ms": statistics.median(times(lone)),
                "answers_a_second": len(times(loop)) / loop.seconds,
                "processor_ms": 1000 * spent / len(times(loop)),
            }
    print(f"round {number + 1}", flush=True)
    return found


def processor_seconds(server: ServerProcess) -> float:
    """Of the server and its workers so far."""
    first = psutil.Process(server.process.pid)
    return sum(sum(process.cpu_times()[:2]) for process in (first, *first.children(recursive=True)))


def summary(rounds: list[dict[str, Any]], mode: str) -> dict[str, Any]:
    """Medians over rounds of differences and ratios within a round, with their range."""

    def spread(values: list[float]) -> dict[str, float]:
        return {"median": statistics.median(values), "least": min(values), "most": max(values)}

    def pairs(key: str, one: str, two: str) -> list[tuple[float, float]]:
        return [(each[mode][one][key], each[mode][two][key]) for each in rounds]

    rate = "answers_a_second"
    return {
        "lone_ms": statistics.median(a for a, _ in pairs("lone_ms", "other", "this")),
        "lone_dearer_ms": spread([b - a for a, b in pairs("lone_ms", "other", "this")]),
        "lone_same_code_ms": spread([b - a for a, b in pairs("lone_ms", "other", "again")]),
        "closed_ratio": spread([b / a for a, b in pairs(rate, "other", "this")]),
        "closed_same_code": spread([b / a for a, b in pairs(rate, "other", "again")]),
        "processor_ratio": spread([b / a for a, b in pairs("processor_ms", "other", "this")]),
        "processor_same_code": spread([b / a for a, b in pairs("processor_ms", "other", "again")]),
    }


def report(found: dict[str, Any]) -> str:
    def cell(spread: dict[str, float]) -> str:
        return f"{spread['median']:.2f} [{spread['least']:.2f}, {spread['most']:.2f}]"

    rows = [
        [mode, f"{one['lone_ms']:.2f}"] + [cell(one[key]) for key in list(one)[1:]]
        for mode, one in found["summary"].items()
    ]
    heading = [
        "mode",
        "lone, ms",
        "this commit dearer by, ms",
        "same code, ms",
        f"closed loop, {found['clients']} clients: this / other",
        "same code",
        "processor time of an answer: this / other",
        "same code",
    ]
    about = (
        f"This commit against {found['commit']}, served in turns, {len(found['rounds'])} rounds: "
        "median over rounds [least, most]."
    )
    return "\n".join([about, "", *table(heading, rows)]) + "\n"


if __name__ == "__main__":
    main()
