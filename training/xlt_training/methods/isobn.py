"""IsoBN: scale each dimension by how much it repeats the others (Zhou 2021; a baseline of IsoZCL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from xlt_training.loop.method import Method, Trait
from xlt_training.loop.network import Classifier


def isotropic_scale(deviation: Tensor, covariance: Tensor, beta: float, eps: float) -> Tensor:
    """[width] factors: dimensions with a large deviation and strong correlations are damped, the
    total variance is kept."""
    correlation = (covariance / torch.outer(deviation, deviation).clamp(min=1e-12)).clamp(-1, 1)
    weight = correlation.square().mean(dim=1) * deviation
    scale = (weight + eps) ** -beta
    variance = covariance.diagonal()
    return scale * (variance.sum() / ((variance * scale.square()).sum() + eps)).sqrt()


class FirstTokenIsoBN(nn.Module):
    """IsoBN of the first token; the running statistics are buffers, saved with the model."""

    deviation: Tensor
    covariance: Tensor

    def __init__(self, width: int, momentum: float, eps: float, beta: float) -> None:
        super().__init__()
        self.momentum, self.eps, self.beta = momentum, eps, beta
        self.register_buffer("deviation", torch.zeros(width))
        self.register_buffer("covariance", torch.zeros(width, width))

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """The states [batch, length, width] with the first token scaled; pooled ones [batch, width] all."""
        if states.ndim == 2:
            return self._scaled(states)
        return torch.cat([self._scaled(states[:, 0]).unsqueeze(1), states[:, 1:]], dim=1)

    def _scaled(self, first: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                centred = first - first.mean(dim=0)
                covariance = centred.T @ centred / len(first)
                deviation = centred.square().mean(dim=0).sqrt()
                self.covariance += self.momentum * (covariance - self.covariance)
                self.deviation += self.momentum * (deviation - self.deviation)
        return first * isotropic_scale(self.deviation, self.covariance, self.beta, self.eps)


@dataclass
class IsoBN(Method):
    """The head reads the first token scaled towards isotropy by running statistics.

    ``at`` "pooled": of BERT its pooler's output is scaled, as the authors do; other heads have no
    pooler of their own. Data: none. Composes with everything but another norm.
    """

    traits = frozenset({Trait.NORM})
    first_edition: ClassVar[dict[str, Any]] = {"at": "first_token"}

    momentum: float = 0.05  # of the running statistics
    eps: float = 1e-3  # added to a weight before its power
    beta: float = 0.5  # power of the weights; 0 changes nothing
    at: Literal["pooled", "first_token"] = "pooled"  # what is scaled, of encoders with a pooler

    def attach(self, model: Classifier) -> None:
        width = model.width
        norm = FirstTokenIsoBN(width, self.momentum, self.eps, self.beta)
        model.slots["isobn"] = norm.to(model.device)
        pooled = self.at == "pooled" and model.pooler is not None
        (model.after_pooler if pooled else model.after).append("isobn")
