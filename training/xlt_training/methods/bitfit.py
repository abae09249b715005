"""BitFit: train the biases and the head, nothing else (Ben Zaken 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xlt_training.loop.method import Context, Method, Trait
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch


def freeze_all_but_biases(model: Classifier) -> None:
    for name, parameter in model.encoder_parameters():
        parameter.requires_grad_(name.endswith("bias"))


@dataclass
class BitFit(Method):
    """A frozen encoder but for its biases; its learning rate is large, 1e-3.

    Data: none. Composes with everything but another method that freezes.
    """

    traits = frozenset({Trait.FREEZES})

    def prepare(self, model: Classifier, batches: Sequence[Batch], context: Context) -> None:
        freeze_all_but_biases(model)
