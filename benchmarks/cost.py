"""What a method costs: ``python -m benchmarks.cost --data ../shared/data``.

Every method on the same encoder and batches. Measured are the time of a training step (forward,
backward, optimiser) and its peak memory, over vanilla's. Beside them stand the passes through the
encoder, forwards and backwards, and a count of floating-point operations. Methods take turns, so that
a noisy machine hits all alike; medians are reported. ``over_flops`` is time ÷ (operations ÷
vanilla's): the goal is 1.25.

Operations of matrix products and attention are counted by torch. Work that is no product (the
optimiser, an anchor's penalty over all parameters) is counted as two operations for each value
that it touches, as a multiply-add is. Peak memory is that of a process of its own for each method,
over what it held before its first step. A method that only changes the data has vanilla's step on the
same tokens; it costs more by its epoch, which has more examples.
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
from xlt_training.data import load_split
from xlt_training.loop import fisher
from xlt_training.loop import model as models
from xlt_training.loop.method import Context, Method, compose
from xlt_training.loop.network import Classifier
from xlt_training.loop.pretrained import resolve
from xlt_training.loop.types import Batch, Example
from xlt_training.methods import METHODS
from xlt_training.methods.ewc import EWC
from xlt_training.methods.l2_anchor import L2Anchor

from benchmarks.markdown import table

HERE = Path(__file__).parent
# Values touched for each parameter: Adam reads and writes three and reads a gradient; a penalty reads
# the parameter, its anchor and importance, and gives a gradient, forwards and backwards.
ADAM, PENALTY = 7, 7


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
    context = Context(
        "en", 0, options.data / "lexicons", options.data / "sib200" / "mt", steps=1000
    )
    source = load_split("sib200", options.data, "train", "en")

    def step_of(name: str) -> Step:
        method = make(name, options.work)
        return Step(method, options.encoder, source, context, options.batch)

    if options.memory_of:
        print(json.dumps(peak_megabytes(step_of(options.memory_of))))
        return
    texts = (options.data / "text" / "fr.txt").read_text(encoding="utf-8").splitlines()
    fisher.save(options.work, "fr", fisher.compute(options.encoder, texts, sentences=20))
    steps = {name: step_of(name) for name in METHODS}
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
        row["tokens_over_vanilla"] = row["tokens"] / base["tokens"]
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
        augmented = list(method.augment(source, context))
        examples = augmented[-size:]
        self.growth = len(augmented) / len(source)
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
        forward, backward = _count_passes(self.model.layers("counting passes")[-1], self)
        with FlopCounterMode(display=False) as counter:
            self()
        trained = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        elementwise = trained * ADAM + sum(p.numel() for p in self.penalised) * PENALTY
        return {
            "seconds": seconds,
            "flops": counter.get_total_flops() + 2 * elementwise,
            "encoder_passes": forward,
            "backward_passes": backward,
            "examples_over_vanilla": self.growth,
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


def _count_passes(module: torch.nn.Module, run: Callable[[], None]) -> tuple[int, int]:
    """How often ``run`` goes through a module, forwards and backwards."""
    calls: dict[str, int] = {"forward": 0, "backward": 0}

    def backward(_: torch.Tensor) -> None:
        calls["backward"] += 1

    def forward(*given: Any) -> None:
        calls["forward"] += 1
        out = given[-1][0] if isinstance(given[-1], tuple) else given[-1]
        if out.requires_grad:
            out.register_hook(backward)

    handle = module.register_forward_hook(forward)
    run()
    handle.remove()
    return calls["forward"], calls["backward"]


def markdown(results: dict[str, Any]) -> str:
    rows = [
        [
            name,
            *(f"{row[f'{what}_over_vanilla']:.2f}" for what in ("time", "flops")),
            f"{row['over_flops']:.2f}",
            f"{row['memory_over_vanilla']:.2f}",
            f"{row['encoder_passes']} + {row['backward_passes']}",
            *(f"{row[f'{what}_over_vanilla']:.2f}" for what in ("tokens", "examples")),
        ]
        for name, row in results["methods"].items()
    ]
    head = ["method", "time ÷", "operations ÷", "time ÷ operations", "memory ÷", "passes"]
    lines = [
        f"# Cost of a step on `{results['encoder']}`, batch {results['batch']}",
        "",
        "*Passes*: through the encoder, forwards + backwards. *Tokens*: in the batch measured;",
        "*examples*: in an epoch. Columns with ÷ are to vanilla's, but for time ÷ operations.",
        "",
        *table([*head, "tokens ÷", "examples ÷"], rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
