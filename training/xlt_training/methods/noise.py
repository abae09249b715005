"""RS-RP: random noise on the embeddings, fresh at every step (Robust-XLT, Huang 2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from xlt_serve.smoothing.noise import Place
from xlt_training.loop.method import Method, Objective, TrainedNoise, Trait, least_problems
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Loss


def draw(
    like: Tensor, mask: Tensor | None, distribution: str, epsilon: float, sigma: float
) -> Tensor:
    """Noise of the shape of ``like``, zero where ``mask`` [batch, length] is: uniform within the L∞
    ball of radius ``epsilon``, or Gaussian with deviation ``sigma``."""
    if distribution == "uniform":
        noise = epsilon * (2 * torch.rand_like(like) - 1)
    else:
        noise = sigma * torch.randn_like(like)
    return noise if mask is None else noise * mask.unsqueeze(-1)


@dataclass
class Noise(Method):
    """Cross-entropy of a noisy input: ``CE(f(E(x)+δ), y)``, δ uniform or Gaussian.

    ``at``: on all real positions of E(x), or on the encoder's output at the first token. Gaussian
    noise is what an L2 certificate needs. Data: none. Composes with what changes ids, written
    before it.
    """

    traits = frozenset({Trait.CHANGES_EMBEDDINGS})
    graphs = ("perturbed",)

    distribution: Literal["uniform", "gaussian"] = "uniform"  # of δ; L2 certificates: gaussian
    epsilon: float = 0.01  # greatest change of a coordinate, where uniform
    sigma: float = 0.1  # deviation, where Gaussian
    at: Place = "embeddings"  # on E(x) at all positions, or on the output at the first token

    def problems(self) -> list[str]:
        return least_problems(self, 0, "epsilon", "sigma")

    def objective(self, model: Classifier, batch: Batch, inner: Objective) -> Loss:
        if self.at == "embeddings":
            embedded = model.embed(batch)
            noise = draw(embedded, model.mask(batch), self.distribution, self.epsilon, self.sigma)
            return inner(model, replace(batch, embeddings=embedded + noise))
        zero = model.zero_shift(batch)
        noise = draw(zero, None, self.distribution, self.epsilon, self.sigma)
        return inner(model, replace(batch, shift=zero + noise))

    def noise(self) -> TrainedNoise:
        scale = self.sigma if self.distribution == "gaussian" else self.epsilon
        return TrainedNoise(self.at, self.distribution, scale)
