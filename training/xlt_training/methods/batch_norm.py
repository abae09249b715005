"""BatchNorm over last-layer tokens before the head (a baseline of IsoZCL, Ji 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xlt_training.loop.method import Method, Trait
from xlt_training.loop.network import Classifier


class TokenBatchNorm(nn.Module):
    """BatchNorm1d over the real tokens of a batch [batch, length, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        if not self.training:
            # Running statistics: every position on its own, so padding does no harm.
            normed: Tensor = self.norm(states.flatten(0, 1))
            return normed.view_as(states)
        real = mask.bool()
        out = torch.zeros_like(states)
        out[real] = self.norm(states[real])
        return out


@dataclass
class BatchNorm(Method):
    """The head reads the first token after BatchNorm over the batch's real tokens.

    Data: none. Composes with everything but another norm.
    """

    traits = frozenset({Trait.NORM})

    def attach(self, model: Classifier) -> None:
        model.slots["batch_norm"] = TokenBatchNorm(model.width).to(model.device)
        model.after.append("batch_norm")
