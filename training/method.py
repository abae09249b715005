"""A training method: a few hooks, wrapped around each other like an onion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.nn import functional as F

from training.network import Classifier
from training.types import Batch, Example, Loss

Objective = Callable[[Classifier, Batch], Loss]


@dataclass(frozen=True)
class Context:
    """What a method may know about the run beside its own settings."""

    task: str
    data: Path
    source: str
    seed: int
    steps: int = 0


@dataclass
class Method:
    """A dataclass whose fields are its keys in a config. Each hook does nothing unless overridden.

    They are called in this order: ``augment``, ``attach``, ``prepare``, then ``objective`` on every
    batch. Loading a checkpoint calls ``attach`` alone.
    """

    def augment(self, examples: Sequence[Example], context: Context) -> Iterable[Example]:
        """The examples to train on, made once before training."""
        return examples

    def attach(self, model: Classifier) -> None:
        """Add modules that are trained, saved and served with the model."""

    def prepare(self, model: Classifier, batches: Sequence[Batch], context: Context) -> None:
        """Change the model before training: freeze, set first values, take anchors."""

    def objective(self, model: Classifier, batch: Batch, inner: Objective) -> Loss:
        """The loss of a batch; ``inner`` is the objective of the next method in the config."""
        return inner(model, batch)


def cross_entropy(model: Classifier, batch: Batch) -> Loss:
    """The innermost objective."""
    loss = F.cross_entropy(model(batch).logits, batch.labels)
    return Loss(loss, {"cross_entropy": loss})


def compose(methods: Sequence[Method]) -> Objective:
    """Fold the methods over cross-entropy; the first in the list is the outermost."""

    def wrap(method: Method, inner: Objective) -> Objective:
        return lambda model, batch: method.objective(model, batch, inner)

    objective: Objective = cross_entropy
    for method in reversed(methods):
        objective = wrap(method, objective)
    return objective
