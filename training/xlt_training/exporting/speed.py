"""Which precision runs fastest here: the plain graphs of finished bundles, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from xlt_serve import bundle as bundles
from xlt_serve.runtime.gpu.providers import runtime
from xlt_serve.runtime.runners import Runners
from xlt_serve.runtime.session import Options

SHAPES = ((1, 32), (8, 64))
BUDGET = 8 * 64  # tokens of the largest
ROUNDS = 12


def candidates(tensorrt: bool) -> list[str]:
    """fp16 is for GPUs: a CPU would cast it back and forth. TensorRT takes no int8 of ours."""
    gpu = "CUDAExecutionProvider" in runtime().get_available_providers()
    if tensorrt:
        return ["fp16", "fp32"]
    return ["int8", "fp32", *(["fp16"] if gpu else [])]


def race(folders: Mapping[str, Path]) -> dict[str, float]:
    """Median seconds of a round over all shapes, by name; the first rounds warm up."""
    provider = "cuda" if "CUDAExecutionProvider" in runtime().get_available_providers() else "cpu"
    runs = {name: _round(folder, provider) for name, folder in folders.items()}
    times: dict[str, list[float]] = {name: [] for name in folders}
    for number in range(ROUNDS + 3):
        for name, run in runs.items():
            begun = time.perf_counter()
            run()
            if number >= 3:
                times[name].append(time.perf_counter() - begun)
    return {name: float(np.median(values)) for name, values in times.items()}


def _round(folder: Path, provider: str) -> Callable[[], None]:
    bundle = bundles.load(folder)
    runner = Runners(bundle, Options(provider=provider), BUDGET).of("plain")
    longest = bundle.manifest.max_length
    batches = [
        runner.io.example_rows(runner.io.sizes(rows, min(width, longest))) for rows, width in SHAPES
    ]

    def run() -> None:
        for rows in batches:
            runner.run(rows)

    return run
