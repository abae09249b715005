"""``--against``: others on the same weights, ids and number of threads, taking turns with us.

Whatever else the machine does hits all of them alike. A peer is stopped while others run, so that its
idle threads don't spin.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlt_serve.bench.grid import batch
from xlt_serve.bench.stats import summary
from xlt_serve.bundle import Bundle
from xlt_serve.errors import DataError, UsageError
from xlt_serve.runtime.batching import BUDGET
from xlt_serve.runtime.graph_io import TEXT, Feeds
from xlt_serve.runtime.open_graph import open_graph
from xlt_serve.runtime.session import Options, Session, available_cores

KNOWN = ("transformers", "optimum", "openvino", "ctranslate2")
SCRIPT = Path(__file__).parent / "outside" / "peer.py"
ROUNDS = 20
OURS = "xlt-serve"


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


class PeerProcess:
    """A peer in a process of its own, stopped except while it runs a batch; ``close`` it."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the peer)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
                env=environment,
            )
        except OSError as error:
            raise UsageError(f"--against {name}={command[0]}", f"{error.strerror}") from None
        self.about = self._answer()
        """What it says of itself."""
        self._pause()

    def run(self, batch: str, times: int) -> tuple[list[float], npt.NDArray[Any]]:
        """The seconds of so many runs, and the logits of the last."""
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"batch": batch, "times": times}) + "\n")
        self._process.stdin.flush()
        found = self._answer()
        self._pause()
        return found["seconds"], np.array(found["logits"])

    def close(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def _pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate()
            self._said.seek(0)
            said = self._said.read()
            self._said.close()
            last = said.strip().splitlines()[-1] if said.strip() else "no word"
            raise DataError(self.name, f"can't run here ({last[:300]})")
        found: dict[str, Any] = json.loads(line)
        return found


def save_batches(file: Path, batches: Mapping[str, Feeds]) -> None:
    """The batches by name, as every peer reads them."""
    arrays = {}
    for name, feeds in batches.items():
        arrays[f"{name}/ids"] = feeds[TEXT.ids]
        arrays[f"{name}/mask"] = feeds[TEXT.mask]
    np.savez(file, allow_pickle=False, **arrays)


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
    points: list[dict[str, Any]] = []
    session = open_graph(bundle, "plain", Options(threads=threads, spin=True), BUDGET)
    with (
        tempfile.TemporaryDirectory(prefix="xlt-peers-") as folder,
        contextlib.ExitStack() as stack,
    ):
        feeds = {f"{rows}x{length}": batch(bundle, rows, length) for rows, length in shapes}
        file = Path(folder) / "batches.npz"
        save_batches(file, feeds)
        peers, notes = _opened(wanted, checkpoint, file, threads, stack)
        for rows, length in shapes:
            name = f"{rows}x{length}"
            found = _in_turns(session, feeds[name], name, peers, rounds)
            for who, runs in found.items():
                version = next(
                    (p.about["version"] for p in peers if p.name == who), bundle.manifest.version
                )
                point = _point(who, version, (rows, length), runs, found[OURS])
                points.append(point)
                say(_line(point, found[OURS], bundle.manifest.graphs["plain"].precision))
    return points, notes


def _opened(
    wanted: dict[str, str],
    checkpoint: Path,
    batches: Path,
    threads: int,
    stack: contextlib.ExitStack,
) -> tuple[list[PeerProcess], list[str]]:
    """The peers that run here, and why the others don't."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    peers, notes = [], []
    for name, python in wanted.items():
        command = [python, str(SCRIPT), name, str(checkpoint.absolute()), str(batches)]
        try:
            peer = PeerProcess(name, [*command, str(threads)], environment)
        except DataError as error:
            notes.append(f"--against {error}")
            continue
        stack.callback(peer.close)
        peers.append(peer)
    return peers, notes


@dataclass(slots=True)
class _Runs:
    """One system's runs of one batch, and its logits."""

    logits: npt.NDArray[Any]
    milliseconds: list[float] = field(default_factory=list)


def _in_turns(
    session: Session, feeds: Feeds, name: str, peers: Sequence[PeerProcess], rounds: int
) -> dict[str, _Runs]:
    """Everyone in every round; the first round is warm-up."""
    out: dict[str, _Runs] = {}
    for number in range(rounds + 1):
        for who, seconds, logits in _turn(session, feeds, name, peers):
            runs = out.setdefault(who, _Runs(logits))
            if number:
                runs.milliseconds.extend(1000 * s for s in seconds)
            runs.logits = logits
    return out


def _turn(
    session: Session, feeds: Feeds, name: str, peers: Sequence[PeerProcess], times: int = 5
) -> Iterator[tuple[str, list[float], npt.NDArray[Any]]]:
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        found = session.run(feeds)["logits"]
        seconds.append(time.perf_counter() - begun)
    yield OURS, seconds, found
    for peer in peers:
        took, logits = peer.run(name, times + 1)
        yield peer.name, took[1:], logits  # the first wakes it up


def _point(
    who: str, version: str, shape: tuple[int, int], runs: _Runs, ours: _Runs
) -> dict[str, Any]:
    rows, length = shape
    measured = summary(runs.milliseconds)
    return {
        "peer": who,
        "version": version,
        "rows": rows,
        "length": length,
        "latency_ms": measured,
        "tokens_per_second": round(1000 * rows * length / measured["mean"], 1),
        "largest_difference": float(np.abs(runs.logits - ours.logits).max()),
        "same_labels": float((runs.logits.argmax(1) == ours.logits.argmax(1)).mean()),
    }


def _line(point: dict[str, Any], ours: _Runs, precision: str) -> str:
    median = point["latency_ms"]["p50"]
    ratio = median / float(np.median(ours.milliseconds))
    return (
        f"{point['peer']:14} {point['rows']:3} × {point['length']:3}  p50 {median:8.2f} ms  "
        f"{ratio:5.2f} × ours ({precision})"
    )
