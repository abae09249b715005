"""What do three graphs over one weights file cost in memory and speed? ``python -m benchmarks.memory``.

XLM-R-base shape, random weights, all three graphs. Each way of opening them runs in a process of its
own; memory is the proportional set size after 20 runs of each open graph, less that of the same
process before it opened any. Ways:

- ``one``: the plain graph alone;
- ``three``: a session each, as onnxruntime does it by default;
- ``unpacked``: the same without prepacked copies of the weights;
- ``two``: the perturbed graph without noise serves plain requests too, and paired has a session.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pss import proportional_megabytes
from xlt_serve import bundle as bundles
from xlt_serve.runtime.graph_io import Feeds, GraphIO, random_pieces
from xlt_serve.runtime.open_graph import described, io_of

HERE = Path(__file__).parent
WAYS = {
    "one": ["plain"],
    "three": ["plain", "perturbed", "paired"],
    "unpacked": ["plain", "perturbed", "paired"],
    "two": ["perturbed", "paired"],
}
RUNS = 20
PIECES = random_pieces(8, 64, 250_000, ragged=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/memory"))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "memory.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help="measure this one in this process")
    parser.add_argument("--precision", default="int8", choices=("fp32", "int8"))
    options = parser.parse_args()
    folder = options.work / options.precision
    if options.way:
        print(json.dumps(measure(folder, options.way)))
        return
    if not (folder / bundles.MANIFEST).is_file():
        build(folder, options.precision)
    rounds = [
        {way: in_own_process(way, options.precision, options.work) for way in WAYS}
        for _ in range(options.rounds)
    ]
    results = json.loads(options.out.read_text()) if options.out.is_file() else {}
    results[options.precision] = summary = summarise(rounds)
    options.out.write_text(json.dumps(results, indent=2) + "\n")
    for way, row in summary.items():
        print(way, row)


def build(folder: Path, precision: str) -> None:
    """The three graphs, as the exporter makes them."""
    from xlt_training.loop import pretrained
    from xlt_training.loop.network import Classifier
    from xlt_training.methods.xmixup import XMixup

    from benchmarks import random_bundles
    from benchmarks.peers import checkpoint

    tokenizer = pretrained.load_tokenizer(Path("../shared/data/tokenizers/xlm-roberta"))
    model = Classifier(checkpoint.build(), tokenizer, 512)
    XMixup().attach(model)
    random_bundles.save(model, folder, precision=precision, graphs=WAYS["three"], layer=6)


def in_own_process(way: str, precision: str, work: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.memory", "--way", way]
    command += ["--precision", precision, "--work", str(work)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(folder: Path, way: str) -> dict[str, float]:
    """Megabytes, and seconds of a plain request."""
    import onnxruntime

    bundle = bundles.load(folder)
    ios = {name: io_of(bundle, name, described(bundle, name)) for name in WAYS[way]}
    before = proportional_megabytes()
    sessions = {}
    for name in ios:
        settings = onnxruntime.SessionOptions()
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if way == "unpacked":
            settings.add_session_config_entry("session.disable_prepacking", "1")
        sessions[name] = onnxruntime.InferenceSession(folder / f"{name}.onnx", settings)
    for name, session in sessions.items():
        feeds = inputs(ios[name])
        for _ in range(RUNS):
            session.run(None, feeds)
    plain = WAYS[way][0]
    times = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        sessions[plain].run(None, inputs(ios[plain]))  # making the noise is part of the price
        times.append(time.perf_counter() - begun)
    return {
        "megabytes": proportional_megabytes() - before,
        "seconds": float(np.median(times)),
    }


def inputs(io: GraphIO[Any]) -> Feeds:
    """A batch for a graph; no noise: what a plain request is to the perturbed one."""
    return io.feeds([io.row(piece) for piece in PIECES])


def summarise(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Medians over rounds of megabytes, and of the ratios to ``one`` within a round."""
    out: dict[str, Any] = {}
    for way in WAYS:
        out[way] = {"megabytes": float(np.median([r[way]["megabytes"] for r in rounds]))}
        for what in ("megabytes", "seconds"):
            ratios = [r[way][what] / r["one"][what] for r in rounds]
            out[way][f"{what}_to_one"] = float(np.median(ratios))
            out[way][f"{what}_to_one_spread"] = [min(ratios), max(ratios)]
    return out


if __name__ == "__main__":
    main()
