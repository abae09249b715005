"""How fast is our plain graph beside other people's? ``python -m benchmarks.graphs``.

XLM-R-base with random weights on the CPU, fp32 and int8, one text of 64 tokens and eight of 128:
optimum's export, onnxruntime's transformers optimizer, OpenVINO and CTranslate2, each in an
environment of its own, on the same weights, ids and number of threads. All are open at once and
take turns (ours, the first peer, the second, …, ours again), so that what else the machine does
hits all alike. A peer is stopped while others run, so that its idle threads don't spin. Each round
gives a ratio to the best peer; reported are the median of the ratios and their 10th and 90th
percentile.

It also checks that all compute the same thing: logits and labels against torch on random ids, and
whether a text's logits depend on its neighbours in the batch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers import checkpoint, environments
from xlt_serve.bench import machine
from xlt_serve.bench.peers import PeerProcess, save_batches
from xlt_serve.errors import DataError
from xlt_serve.runtime.graph_io import TEXT, Feeds
from xlt_serve.runtime.session import available_cores

HERE = Path(__file__).parent
ROOT = HERE.parent
SHAPES = {"1x64": (1, 64), "8x128": (8, 128)}
REPEATS = {"1x64": 5, "8x128": 1}  # timed runs a turn, after one that is not timed
PRECISIONS = ("int8", "fp32")
CHECK_BATCHES, CHECK_TEXTS, CHECK_LENGTH = 8, 8, 64
ALONE = 8  # texts that are also run by themselves


@dataclass(frozen=True)
class Peer:
    """``form``: the precision that its script makes; ``precision``: the table it stands in."""

    name: str
    script: str
    environment: str | None  # None: ours
    precision: str
    form: str

    @property
    def python(self) -> str:
        return str(environments.python(self.environment)) if self.environment else sys.executable

    @property
    def is_ours(self) -> bool:
        return self.environment is None


PEERS = [
    *(Peer("xlt-serve", "with_xlt", None, p, p) for p in PRECISIONS),
    *(Peer("optimum", "with_optimum", "optimum", p, p) for p in PRECISIONS),
    *(Peer("onnxruntime optimizer", "with_optimizer", "optimum", p, p) for p in PRECISIONS),
    *(Peer("OpenVINO", "with_openvino", "openvino", p, p) for p in PRECISIONS),
    Peer("OpenVINO, weights only", "with_openvino", "openvino", "int8", "int8-weights"),
    Peer("OpenVINO, no bfloat16", "with_openvino", "openvino", "int8", "int8-fp32"),
    *(Peer("CTranslate2", "with_ctranslate2", "ctranslate2", p, p) for p in PRECISIONS),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "graphs")
    parser.add_argument("--rounds", type=int, default=12, help="of int8; fp32 gets a third")
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", default=list(PRECISIONS))
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--remake", action="store_true", help="make our own graphs again")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "graphs.json")
    options = parser.parse_args()
    # Peers are stopped most of the time: one left behind would stay so for ever.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    model = prepare(options.work)
    batches = options.work / "batches.npz"
    expected = write_batches(model, batches)
    del model
    missing: dict[str, dict[str, str]] = {precision: {} for precision in PRECISIONS}
    results: dict[str, Any] = {
        "machine": {"processor": processor(), "threads": options.threads},
        "versions": {name: list(pins) for name, pins in environments.REQUIREMENTS.items()},
        "precisions": {},
    }
    for precision in options.precision:
        running: dict[str, PeerProcess] = {}
        checks: dict[str, dict[str, float]] = {}
        try:
            for peer in (peer for peer in PEERS if peer.precision == precision):
                try:
                    make(peer, options.work, options.remake)
                    running[peer.name] = opened(peer, options.work, batches, options.threads)
                    checks[peer.name] = check(running[peer.name], expected)
                except (environments.NotInstalled, Failed, DataError) as reason:
                    running.pop(peer.name, None)  # it has ended
                    if peer.is_ours:
                        raise
                    missing[precision][peer.name] = str(reason).replace(f"{ROOT}/", "")
            rounds = options.rounds if precision == "int8" else max(2, options.rounds // 3)
            times = take_turns(running, rounds)
        finally:
            for process in running.values():
                process.close()
        results["precisions"][precision] = {
            "rounds": rounds,
            "checks": checks,
            "shapes": {shape: summarise(rows) for shape, rows in times.items()},
            "missing": missing[precision],
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2) + "\n")
        options.out.with_suffix(".md").write_text(markdown(results))
    print(options.out.with_suffix(".md").read_text())


class Failed(Exception):
    """The end of what a peer's script wrote before it gave up."""


def opened(peer: Peer, work: Path, batches: Path, threads: int) -> PeerProcess:
    command = [*script(peer, "run", work), "--batches", str(batches), "--threads", str(threads)]
    return PeerProcess(peer.name, command, os.environ | {"OMP_NUM_THREADS": str(threads)})


def script(peer: Peer, command: str, work: Path) -> list[str]:
    file = HERE / "peers" / f"{peer.script}.py"
    where = ["--checkpoint", str(work / "checkpoint"), "--folder", str(folder(peer, work))]
    return [peer.python, str(file), command, *where, "--precision", peer.form]


def folder(peer: Peer, work: Path) -> Path:
    return work / peer.script.removeprefix("with_") / peer.form


def make(peer: Peer, work: Path, remake: bool) -> None:
    """A peer's model, unless it is there; ours changes more often than theirs."""
    done = folder(peer, work) / "made"
    if done.is_file() and not (remake and peer.is_ours):
        return
    if peer.script == "with_openvino":  # it reads optimum's export
        make(next(p for p in PEERS if p.script == "with_optimum" and p.form == "fp32"), work, False)
    made = subprocess.run(script(peer, "make", work), capture_output=True, text=True)
    if made.returncode:
        raise Failed(made.stderr.strip()[-500:])
    done.touch()


def prepare(work: Path) -> Any:
    """The checkpoint, with the tokenizer that converters want to see beside it."""
    model = checkpoint.save(work / "checkpoint")
    data = Path(os.environ.get("XLT_DATA", ROOT.parent / "shared" / "data"))
    shutil.copy(data / "tokenizers" / "xlm-roberta" / "tokenizer.json", work / "checkpoint")
    return model


def write_batches(model: Any, file: Path) -> dict[str, np.ndarray]:
    """Write random ids for all peers; give back torch's logits of the batches that check."""
    generator = torch.Generator().manual_seed(checkpoint.SEED)
    batches: dict[str, Feeds] = {}

    def add(name: str, ids: torch.Tensor, mask: torch.Tensor) -> None:
        batches[name] = {TEXT.ids: ids.numpy(), TEXT.mask: mask.numpy()}

    def draw(rows: int, width: int) -> torch.Tensor:
        pieces = (checkpoint.FIRST_PIECE, model.config.vocab_size)
        return torch.randint(*pieces, (rows, width), generator=generator)

    for name, shape in SHAPES.items():
        ids = draw(*shape)
        add(name, ids, torch.ones_like(ids))
    expected = {}
    for number in range(CHECK_BATCHES):
        ids = draw(CHECK_TEXTS, CHECK_LENGTH)
        mask = torch.ones_like(ids)
        for row in range(1, CHECK_TEXTS):  # the first stays whole
            mask[row, CHECK_LENGTH - row * CHECK_LENGTH // (CHECK_TEXTS + 1) :] = 0
        ids[mask == 0] = model.config.pad_token_id
        add(f"check-{number}", ids, mask)
        with torch.inference_mode():
            logits = model(input_ids=ids, attention_mask=mask).logits
        expected[f"check-{number}"] = logits.numpy()
        if number == 0:
            for row in range(ALONE):
                length = int(mask[row].sum())
                add(f"alone-{row}", ids[row : row + 1, :length], mask[row : row + 1, :length])
    save_batches(file, batches)
    return expected


def check(peer: PeerProcess, expected: dict[str, np.ndarray]) -> dict[str, float]:
    given = {name: peer.run(name, 1)[1] for name in expected}
    alone = np.concatenate([peer.run(f"alone-{row}", 1)[1] for row in range(ALONE)])
    found, truth = np.concatenate(list(given.values())), np.concatenate(list(expected.values()))
    return {
        "largest_difference": float(np.abs(found - truth).max()),
        "label_agreement": float((found.argmax(1) == truth.argmax(1)).mean()),
        "neighbour_effect": float(np.abs(alone - given["check-0"]).max()),
    }


def take_turns(peers: dict[str, PeerProcess], rounds: int) -> dict[str, dict[str, list[float]]]:
    """shape → name → the median seconds of each round."""
    out: dict[str, dict[str, list[float]]] = {s: {name: [] for name in peers} for s in SHAPES}
    for number in range(rounds + 1):
        for shape, rows in out.items():
            for name, peer in peers.items():
                # Others have filled the caches since its last turn: the first run is not counted.
                seconds = peer.run(shape, REPEATS[shape] + 1)[0][1:]
                if number:  # the first round is warm-up as a whole
                    rows[name].append(float(np.median(seconds)))
    return out


def summarise(times: dict[str, list[float]]) -> dict[str, Any]:
    """Milliseconds, and per round the ratio to the best peer: under 1 is faster than it."""
    ours = next(peer.name for peer in PEERS if peer.is_ours)
    peers = [name for name in times if name != ours]
    best = min(peers, key=lambda name: float(np.median(times[name]))) if peers else ours
    rows = {}
    for name, seconds in times.items():
        ratios = np.array(seconds) / np.array(times[best])
        low, high = np.percentile(ratios, [10, 90])
        rows[name] = {
            "milliseconds": 1000 * float(np.median(seconds)),
            "ratio": float(np.median(ratios)),
            "low": float(low),
            "high": float(high),
        }
    return {"best_peer": best, "rows": rows}


def markdown(results: dict[str, Any]) -> str:
    found_on = results["machine"]
    lines = [
        "# Our plain graph and its peers",
        "",
        f"XLM-R-base, random weights, {found_on['processor']}, {found_on['threads']} threads, "
        "interleaved rounds. Time ÷ that of the best peer, median of the rounds "
        "(10th–90th percentile); under 1 is faster. Beside it: largest logit difference to torch in "
        f"fp32 and equal labels on {CHECK_BATCHES * CHECK_TEXTS} random texts, and how far the "
        "logits of a text move with its neighbours and padding.",
    ]
    for precision, found in results["precisions"].items():
        lines += ["", f"## {precision}, {found['rounds']} rounds", ""]
        lines += [f"| | {' | '.join(SHAPES)} | ms | difference | labels | neighbours |"]
        lines += ["|---" * (len(SHAPES) + 5) + "|"]
        names = list(found["checks"])
        lines += [row(name, found["shapes"], found["checks"][name]) for name in names]
        for name, reason in found["missing"].items():
            lines += ["", f"Missing: {name}: {reason.splitlines()[-1] if reason else 'no reason'}"]
    return "\n".join(lines) + "\n"


def row(name: str, shapes: dict[str, Any], checked: dict[str, float]) -> str:
    cells: Sequence[dict[str, float]] = [shapes[shape]["rows"][name] for shape in SHAPES]
    ratios = [f"{c['ratio']:.2f} ({c['low']:.2f}–{c['high']:.2f})" for c in cells]
    milliseconds = ", ".join(f"{c['milliseconds']:.0f}" for c in cells)
    checks = (
        f"{checked['largest_difference']:.1e} | {checked['label_agreement']:.3f} "
        f"| {checked['neighbour_effect']:.1e}"
    )
    return f"| {name} | {' | '.join(ratios)} | {milliseconds} | {checks} |"


def processor() -> str:
    """With the best instructions for int8 that it has."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return machine.processor()
    best = [flag for flag in ("amx_int8", "avx512_vnni", "avx2") if f" {flag}" in flags]
    return f"{machine.processor()} ({', '.join(best[:1])})"


if __name__ == "__main__":
    main()
