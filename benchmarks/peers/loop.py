"""What every peer's script does: ``make`` its model once, then ``run`` it when asked.

Peers live in environments of their own, so this file imports nothing but numpy, and the benchmark
talks to a running peer in lines of JSON: ``{"batch": NAME, "times": K}`` is answered with the
seconds of K runs and the logits of the last.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

Predict = Callable[[np.ndarray, np.ndarray], np.ndarray]  # ids, mask [batch, length] → logits
Make = Callable[[Path, Path, str], None]  # checkpoint, folder to fill, precision
Load = Callable[[Path, str, int], Predict]  # folder, precision, threads


def main(make: Make, load: Load) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("make", "run"))
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batches", type=Path)
    options = parser.parse_args()
    if options.command == "make":
        options.folder.mkdir(parents=True, exist_ok=True)
        make(options.checkpoint, options.folder, options.precision)
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout as they like; the answers keep it to themselves
    batches = read_batches(options.batches)
    predict = load(options.folder, options.precision, options.threads)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        seconds, logits = timed(predict, *batches[question["batch"]], question["times"])
        answer = {"seconds": seconds, "logits": logits.tolist()}
        print(json.dumps(answer), file=answers, flush=True)


def timed(
    predict: Predict, ids: np.ndarray, mask: np.ndarray, times: int
) -> tuple[list[float], np.ndarray]:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        logits = predict(ids, mask)
        seconds.append(time.perf_counter() - start)
    return seconds, logits


def read_batches(file: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """NAME → ids and mask; the file holds them as NAME/ids and NAME/mask."""
    arrays = np.load(file)
    names = {key.rsplit("/", 1)[0] for key in arrays.files}
    return {name: (arrays[f"{name}/ids"], arrays[f"{name}/mask"]) for name in names}
