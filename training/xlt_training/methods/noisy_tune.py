"""NoisyTune: a little noise on the pretrained weights before fine-tuning (Wu 2022)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from xlt_training.loop.method import Context, Method, Trait
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch


@torch.no_grad()
def perturb(
    parameters: Iterable[nn.Parameter], strength: float, generator: torch.Generator
) -> None:
    """Each parameter tensor += U(−½, ½) · strength · its own standard deviation."""
    for parameter in parameters:
        if parameter.numel() > 1:
            noise = torch.rand(parameter.shape, generator=generator) - 0.5
            parameter.add_(noise.to(parameter.device) * strength * parameter.std())


@dataclass
class NoisyTune(Method):
    """Perturb every parameter tensor of the encoder that will be tuned once, before any is.

    Data: none. Must stand after an anchor: before it, the anchor would hold on to the noise.
    """

    traits = frozenset({Trait.MOVES_WEIGHTS})

    strength: float = 0.1  # of the noise, in standard deviations of the tensor

    def prepare(self, model: Classifier, batches: Sequence[Batch], context: Context) -> None:
        if NoisyTune not in context.prepared:  # once, before training
            tuned = (
                parameter
                for name, parameter in model.encoder_parameters()
                if context.tuned is None or name in context.tuned
            )
            perturb(tuned, self.strength, torch.Generator().manual_seed(context.seed))
