"""IsoZCL's first stage: pull the token vectors towards an isotropic Gaussian (Ji 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from xlt_training.loop.method import Method, Objective, Trait
from xlt_training.loop.network import Classifier
from xlt_training.loop.tensors import real_tokens
from xlt_training.loop.types import Batch, Loss


def wasserstein_to_isotropic(tokens: Tensor) -> Tensor:
    """Squared 2-Wasserstein distance of [n, d] vectors' Gaussian to N(0, I/d).

    ``‖μ‖² + 1 + tr Σ − (2/√d) tr Σ^½``, Σ with 1/n. tr Σ^½ is the sum of the singular values of the
    centred matrix over √n: no d × d root, and stable where n < d.
    """
    count, width = tokens.shape
    mean = tokens.mean(dim=0)
    centred = tokens - mean
    root = torch.linalg.svdvals(centred).sum() / count**0.5
    spread = centred.square().sum() / count
    distance: Tensor = mean.square().sum() + 1 + spread - 2 * root / width**0.5
    return distance


@dataclass
class Isotropy(Method):
    """``loss + weight · W``, W of the L2-normalised last-layer vectors of the batch's real tokens.

    Data: none. Composes with everything. IsoZCL uses weight 0.5, and 1 for XLM-R on XNLI.
    """

    traits = frozenset({Trait.PENALTY})

    weight: float = 0.5  # of W in the loss

    def objective(self, model: Classifier, batch: Batch, inner: Objective) -> Loss:
        loss = inner(model, batch)
        tokens = torch.cat([real_tokens(out.last, out.attention_mask) for out in loss.outputs])
        term = self.weight * wasserstein_to_isotropic(F.normalize(tokens, dim=-1))
        return replace(loss, total=loss.total + term, terms=loss.terms | {"isotropy": term})
