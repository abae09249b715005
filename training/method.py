"""A training method: three hooks, wrapped around each other like an onion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch.nn import functional as F
from transformers import PreTrainedModel

from training.types import Batch, Example, Loss

Objective = Callable[[PreTrainedModel, Batch], Loss]


@dataclass
class Method:
    """A dataclass whose fields are its keys in a config. Each hook does nothing unless overridden."""

    def augment(self, examples: Sequence[Example]) -> Iterable[Example]:
        """The examples to train on, made once before training."""
        return examples

    def prepare(self, model: PreTrainedModel, batches: Iterable[Batch]) -> None:
        """Change the model before training: freeze, add modules, take anchors."""

    def objective(self, model: PreTrainedModel, batch: Batch, inner: Objective) -> Loss:
        """The loss of a batch; ``inner`` is the objective of the next method in the config."""
        return inner(model, batch)


def cross_entropy(model: PreTrainedModel, batch: Batch) -> Loss:
    """The innermost objective."""
    loss = F.cross_entropy(model(**batch.inputs()).logits, batch.labels)
    return Loss(loss, {"cross_entropy": loss})


def compose(methods: Sequence[Method]) -> Objective:
    """Fold the methods over cross-entropy; the first in the list is the outermost."""

    def wrap(method: Method, inner: Objective) -> Objective:
        return lambda model, batch: method.objective(model, batch, inner)

    objective: Objective = cross_entropy
    for method in reversed(methods):
        objective = wrap(method, objective)
    return objective
