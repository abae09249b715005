"""What a method costs: ``python -m benchmarks.cost --data ../shared/data``.

One run, every method on the same encoder and batches: time of a training step (forward, backward,
optimiser) and peak memory over vanilla's, beside the number of passes through the encoder and what
a count of floating-point operations implies. Methods take turns, so that a noisy machine hits all
alike; medians are reported. ``over_flops`` is time ÷ (operations ÷ vanilla's): the goal is 1.25.

Operations of matrix products and attention are counted by torch. Work that is no product (the
optimiser, an anchor's penalty over all parameters) is counted as two operations for each value
that it touches, as a multiply-add is. Peak memory is that of a process of its own for each method,
over what it held before its first step. Methods that only change the data cost what vanilla costs
on the same tokens, and are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from training import fisher
from training import model as models
from training.data import load_split
from training.method import Context, Method, compose
from training.methods import METHODS
from training.methods.ewc import EWC
from training.methods.l2_anchor import L2Anchor
from training.network import Classifier
from training.pretrained import resolve
from training.types import Batch, Example

HERE = Path(__file__).parent
# Values touched for each parameter: Adam reads and writes three and reads a gradient; a penalty reads
# the parameter, its anchor and importance, and gives a gradient, forwards and backwards.
ADAM, PENALTY = 7, 7
ADDS_DATA_ONLY = {"vanilla", "synonyms", "word_swap", "translate_train"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--encoder", default="small")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--work", type=Path, default=Path("build/cost"))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "cost.json")
    parser.add_argument("--memory-of", choices=METHODS, help="peak of this method in this process")
    options = parser.parse_args()
    context = Context("sib200", options.data, "en", seed=0, steps=1000)
    source = load_split("sib200", options.data, "train", "en")

    def step_of(name: str) -> Step:
        method = make(name, options.work)
        return Step(method, options.encoder, source, context, options.batch)

    if options.memory_of:
        print(json.dumps(peak_megabytes(step_of(options.memory_of))))
        return
    texts = (options.data / "text" / "fr.txt").read_text(encoding="utf-8").splitlines()
    fisher.save(options.work, "fr", fisher.compute(options.encoder, texts, sentences=20))
    names = [name for name in METHODS if name == "vanilla" or name not in ADDS_DATA_ONLY]
    steps = {name: step_of(name) for name in names}
    for step in steps.values():
        step()  # warm-up, and the optimiser's state
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - begun)
    rows = {name: step.described(statistics.median(times[name])) for name, step in steps.items()}
    steps.clear()
    for name, row in rows.items():
        row["peak_mb"] = peak_in_own_process(name, options)
    base = rows["vanilla"]
    for row in rows.values():
        row["time_over_vanilla"] = row["seconds"] / base["seconds"]
        row["flops_over_vanilla"] = row["flops"] / base["flops"]
        row["memory_over_vanilla"] = row["peak_mb"] / base["peak_mb"]
        row["over_flops"] = row["time_over_vanilla"] / row["flops_over_vanilla"]
    out = {"encoder": options.encoder, "batch": options.batch, "methods": rows}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(out, indent=2) + "\n")
    options.out.with_suffix(".md").write_text(markdown(out))
    print(options.out.with_suffix(".md").read_text())


def make(name: str, fishers: Path) -> Method:
    return EWC(str(fishers), fisher=["fr"]) if name == "ewc" else METHODS[name]()


class Step:
    """A model under one method, and its training step on one batch."""

    def __init__(
        self,
        method: Method,
        encoder: str,
        source: Sequence[Example],
        context: Context,
        size: int,
    ) -> None:
        torch.manual_seed(0)
        examples = list(method.augment(source, context))[-size:]
        labels = sorted({example.label for example in source})
        self.model: Classifier = models.build(resolve(encoder), labels, 128)
        method.attach(self.model)
        self.batch: Batch = self.model.batch(examples)
        method.prepare(self.model, [self.batch], context)
        self.objective = compose([method])
        anchored = isinstance(method, L2Anchor | EWC)
        self.penalised = [p for _, p in self.model.encoder_parameters()] if anchored else []
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=True)
        self.model.train()

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.objective(self.model, self.batch).total.backward()
        self.optimizer.step()

    def described(self, seconds: float) -> dict[str, Any]:
        # By the last layer: X-Mixup runs the layers itself, two streams side by side.
        passes = _count_calls(self.model.layers("counting passes")[-1], self)
        with FlopCounterMode(display=False) as counter:
            self()
        trained = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        elementwise = trained * ADAM + sum(p.numel() for p in self.penalised) * PENALTY
        return {
            "seconds": seconds,
            "flops": counter.get_total_flops() + 2 * elementwise,
            "encoder_passes": passes,
            "tokens": int(self.batch.attention_mask.sum()),
        }


def peak_megabytes(step: Step) -> float:
    """Over what the process held before: activations, gradients, the optimiser's state.

    Linux counts the peak from the start, and loading a model takes more than a step: the count is
    set back first.
    """
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(3):
        step()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    """Kilobytes, as Linux tells them of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def peak_in_own_process(name: str, options: argparse.Namespace) -> float:
    command = [sys.executable, "-m", "benchmarks.cost", "--memory-of", name]
    for option in ("data", "encoder", "batch", "work"):
        command += [f"--{option}", str(getattr(options, option))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _count_calls(module: torch.nn.Module, run: Callable[[], None]) -> int:
    calls: list[int] = []
    handle = module.register_forward_hook(lambda *_: calls.append(1))
    run()
    handle.remove()
    return len(calls)


def markdown(results: dict[str, Any]) -> str:
    lines = [f"# Cost of a step on `{results['encoder']}`, batch {results['batch']}", ""]
    lines += [
        "| method | time ÷ vanilla | operations ÷ vanilla | time ÷ operations | memory ÷ vanilla | passes |"
    ]
    lines += ["|---|---|---|---|---|---|"]
    for name, row in results["methods"].items():
        lines.append(
            f"| {name} | {row['time_over_vanilla']:.2f} | {row['flops_over_vanilla']:.2f} "
            f"| {row['over_flops']:.2f} | {row['memory_over_vanilla']:.2f} "
            f"| {row['encoder_passes']} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
