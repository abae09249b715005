"""CosReg: push the token vectors of a batch apart (a baseline of IsoZCL, Ji 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from xlt_training.loop.method import Method, Objective, Trait
from xlt_training.loop.network import Classifier
from xlt_training.loop.tensors import real_tokens
from xlt_training.loop.types import Batch, Loss


def mean_pairwise_cosine(tokens: Tensor) -> Tensor:
    """Of distinct rows of [n, d], in linear time: (‖Σ u‖² − n) / (n (n − 1)) for unit vectors u."""
    count = len(tokens)
    total = F.normalize(tokens, dim=-1).sum(dim=0)
    return (total.square().sum() - count) / max(count * (count - 1), 1)


@dataclass
class Cosine(Method):
    """``loss + weight · mean cosine`` of the batch's distinct real last-layer tokens.

    Data: none. Composes with everything.
    """

    traits = frozenset({Trait.PENALTY})

    weight: float = 1.0  # of the mean cosine in the loss

    def objective(self, model: Classifier, batch: Batch, inner: Objective) -> Loss:
        loss = inner(model, batch)
        tokens = torch.cat([real_tokens(out.last, out.attention_mask) for out in loss.outputs])
        term = self.weight * mean_pairwise_cosine(tokens)
        return replace(loss, total=loss.total + term, terms=loss.terms | {"cosine": term})
