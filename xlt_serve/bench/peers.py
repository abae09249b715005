"""``--against``: others on the same weights, ids and number of threads, taking turns with us.

Whatever else the machine does hits all of them alike; who is not asked is stopped, so that nobody's
idle threads spin.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xlt_serve.bench.grid import batch
from xlt_serve.bench.stats import summary
from xlt_serve.bundle import Bundle
from xlt_serve.errors import DataError, UsageError
from xlt_serve.runtime.batching import BUDGET
from xlt_serve.runtime.graph_io import TEXT
from xlt_serve.runtime.open_graph import open_graph
from xlt_serve.runtime.session import Options, available_cores

KNOWN = ("transformers", "optimum", "openvino", "ctranslate2")
SCRIPT = Path(__file__).parent / "outside" / "peer.py"
ROUNDS = 20


def chosen(wanted: Sequence[str]) -> dict[str, str]:
    """The interpreter of each peer: ``NAME`` for ours, ``NAME=PYTHON`` for one of its own."""
    out = {}
    for entry in wanted:
        name, _, python = entry.partition("=")
        if name == "infinity":
            raise UsageError(
                "infinity", "is a server", "start it and give its URL with --api infinity"
            )
        if name not in KNOWN:
            raise UsageError(f"--against {name}", f"is no peer; known: {', '.join(KNOWN)}")
        out[name] = python or sys.executable
    return out


class Peer:
    """A running peer; ``close`` it."""

    def __init__(
        self, name: str, python: str, checkpoint: Path, batches: Path, threads: int
    ) -> None:
        self.name = name
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the peer)
        command = [python, str(SCRIPT), name, str(checkpoint), str(batches), str(threads)]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
                env=environment | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)},
            )
        except OSError as error:
            raise UsageError(f"--against {name}={python}", f"{error.strerror}") from None
        self.version: str = self._answer()["version"]
        self.pause()

    def ask(self, name: str, times: int) -> tuple[list[float], Any]:
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"batch": name, "times": times}) + "\n")
        self._process.stdin.flush()
        found = self._answer()
        self.pause()
        return found["seconds"], np.array(found["logits"])

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate()
            self._said.seek(0)
            said = self._said.read()
            self._said.close()
            last = said.strip().splitlines()[-1] if said.strip() else "no word"
            raise DataError(f"--against {self.name}", f"can't run here ({last[:300]})")
        found: dict[str, Any] = json.loads(line)
        return found


def measure(
    bundle: Bundle,
    checkpoint: Path,
    wanted: dict[str, str],
    shapes: Sequence[tuple[int, int]],
    threads: int,
    say: Callable[[str], None],
    rounds: int = ROUNDS,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Points of ours and of each peer that runs, and why the others don't."""
    if not (checkpoint / "config.json").is_file():
        raise UsageError(
            f"--checkpoint {checkpoint}",
            "is no transformers folder",
            "give what the bundle was made of",
        )
    threads = threads or available_cores()
    notes: list[str] = []
    points: list[dict[str, Any]] = []
    session = open_graph(bundle, "plain", Options(threads=threads, spin=True), BUDGET)
    with (
        tempfile.TemporaryDirectory(prefix="xlt-peers-") as folder,
        contextlib.ExitStack() as stack,
    ):
        feeds = {f"{rows}x{length}": batch(bundle, rows, length) for rows, length in shapes}
        file = Path(folder) / "batches.npz"
        arrays = {}
        for name, given in feeds.items():
            arrays[f"{name}/ids"] = given[TEXT.ids]
            arrays[f"{name}/mask"] = given[TEXT.mask]
        np.savez(file, allow_pickle=False, **arrays)
        peers = []
        for name, python in wanted.items():
            try:
                peer = Peer(name, python, checkpoint.absolute(), file, threads)
            except DataError as error:
                notes.append(str(error))
                continue
            stack.callback(peer.close)
            peers.append(peer)
        for rows, length in shapes:
            name = f"{rows}x{length}"
            times: dict[str, list[float]] = {"xlt-serve": []}
            own = session.run(feeds[name])["logits"]
            logits: dict[str, Any] = {}
            for turn in range(rounds + 1):  # the first is warm-up
                for who, seconds, found in _turn(session, feeds[name], name, peers):
                    if turn:
                        times.setdefault(who, []).extend(1000 * s for s in seconds)
                    logits[who] = found
            for who, milliseconds in times.items():
                version = next((p.version for p in peers if p.name == who), bundle.manifest.version)
                measured = summary(milliseconds)
                points.append(
                    {
                        "peer": who,
                        "version": version,
                        "rows": rows,
                        "length": length,
                        "latency_ms": measured,
                        "tokens_per_second": round(1000 * rows * length / measured["mean"], 1),
                        "largest_difference": float(np.abs(logits[who] - own).max()),
                        "same_labels": float((logits[who].argmax(1) == own.argmax(1)).mean()),
                    }
                )
                ratio = measured["p50"] / float(np.median(times["xlt-serve"]))
                say(
                    f"{who:14} {rows:3} × {length:3}  p50 {measured['p50']:8.2f} ms  {ratio:5.2f} × ours "
                    f"({bundle.manifest.graphs['plain'].precision})"
                )
    return points, notes


def _turn(
    session: Any, feeds: dict[str, Any], name: str, peers: Sequence[Peer], times: int = 5
) -> Iterator[tuple[str, list[float], Any]]:
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        found = session.run(feeds)["logits"]
        seconds.append(time.perf_counter() - begun)
    yield "xlt-serve", seconds, found
    for peer in peers:
        took, logits = peer.ask(name, times + 1)
        yield peer.name, took[1:], logits  # the first wakes it up
