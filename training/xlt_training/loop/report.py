"""What a run leaves for people: a picture of its curves, and logs for TensorBoard or MLflow."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from xlt_training.loop.types import Example

MOST_LABELS = 20


def overview(
    train: Sequence[Example], dev: Sequence[Example], judged: Mapping[str, Sequence[Example]]
) -> list[str]:
    """What a run begins with: rows and labels, and the labels that it can't learn. ``dev``: what epochs
    are chosen by; ``judged``: all dev rows by language."""
    labels = Counter(example.label for example in train)
    shown = [f"{label} {count}" for label, count in labels.most_common(MOST_LABELS)]
    more = f", and {len(labels) - len(shown)} more" if len(labels) > len(shown) else ""
    return [
        f"train: {_rows(train)}; dev: {_rows(dev)}",
        f"labels: {', '.join(shown)}{more}",
        f"judged in the end: {', '.join(judged)}",
        *_never_trained(labels, judged),
    ]


def _never_trained(known: Container[str], judged: Mapping[str, Sequence[Example]]) -> list[str]:
    """Named however many they are: a label that is written otherwise in dev makes every score worse."""
    found = {
        lg: Counter(e.label for e in rows if e.label not in known) for lg, rows in judged.items()
    }
    told = [f"{lb} {n} ({lg})" for lg, counts in found.items() for lb, n in counts.most_common()]
    if not told:
        return []
    return [
        f"! dev labels that training lacks: {', '.join(told)}; no epoch is chosen by these rows, and in"
        " the scores they are errors"
    ]


def _rows(examples: Sequence[Example]) -> str:
    languages = Counter(example.language for example in examples)
    return f"{len(examples):,} rows ({', '.join(f'{lg} {n:,}' for lg, n in languages.items())})"


def loggers(folder: Path) -> list[TrainerCallback]:
    """A logger for each of the two packages that is installed; both write into ``folder`` alone,
    unless MLFLOW_TRACKING_URI says otherwise."""
    out: list[TrainerCallback] = []
    if importlib.util.find_spec("tensorboard"):
        from torch.utils.tensorboard import SummaryWriter
        from transformers.integrations.integration_utils import TensorBoardCallback

        out.append(TensorBoardCallback(SummaryWriter(str(folder))))
    if importlib.util.find_spec("mlflow"):
        from transformers.integrations.integration_utils import MLflowCallback

        os.environ.setdefault("MLFLOW_TRACKING_URI", (folder / "mlruns").absolute().as_uri())
        out.append(MLflowCallback())
    return out


def curves(log: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Name → (epoch, value) points, stages one after the other."""
    out: dict[str, list[tuple[float, float]]] = {}
    offset, last, stage = 0.0, 0.0, 0
    for entry in log:
        if entry["stage"] != stage:
            offset, stage = last, entry["stage"]
        last = offset + entry["epoch"]
        for key, value in entry.items():
            if key.startswith(("term/", "figure/")) or key == "eval_accuracy":
                name = "dev accuracy" if key == "eval_accuracy" else key.partition("/")[2]
                out.setdefault(name, []).append((last, value))
    return out


def draw(log: list[dict[str, Any]], file: Path) -> None:
    """The loss terms by name on the left, the accuracy on dev on the right."""
    from matplotlib.figure import Figure

    # The room is fixed: to work it out ("constrained") takes as long as to draw.
    figure = Figure(figsize=(9, 3.5))
    room = {"left": 0.06, "right": 0.98, "bottom": 0.14, "top": 0.91, "wspace": 0.15}
    left, right = figure.subplots(1, 2, gridspec_kw=room)
    for name, points in curves(log).items():
        axes = right if name == "dev accuracy" else left
        axes.plot(*zip(*points, strict=True), marker=".", label=name)
    left.set(xlabel="epoch", title="loss terms")
    left.legend(fontsize="small")
    right.set(xlabel="epoch", title="accuracy on dev", ylim=(0, 1))
    figure.savefig(file, dpi=110)
