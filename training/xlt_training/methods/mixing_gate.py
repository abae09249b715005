"""X-Mixup's λ: how much of a translation is mixed in, by what the two streams show of each other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Gate(nn.Module):
    """λ = λ0 · σ(h·w + a·v + b) for each instance; fixed: λ = λ0.

    h is the entropy and a the agreement of the streams, each less its mean and over its deviation on
    the text that training began with: as they are, w and b would have nearly the same gradient, and
    neither would move. ``agrees``: a is read too.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, ceiling: float, weight: float, fixed: bool, agrees: bool = False) -> None:
        super().__init__()
        self.ceiling, self.fixed = ceiling, fixed
        self.weight = nn.Parameter(torch.tensor(weight))
        self.bias = nn.Parameter(torch.tensor(0.0))
        if agrees:
            self.agreement_weight = nn.Parameter(torch.tensor(0.0))
        self.agrees = agrees
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("deviation", torch.ones(2))

    def standardise(self, entropy: Tensor, agreement: Tensor) -> None:
        """From [n] values of some text."""
        seen = torch.stack([entropy, agreement])
        self.mean.copy_(seen.mean(1))
        self.deviation.copy_(seen.std(1, correction=0).clamp(min=1e-3))

    def forward(self, entropy: Tensor, agreement: Tensor) -> Tensor:
        """[batch] of each → [batch]."""
        if self.fixed:
            return torch.full_like(entropy, self.ceiling)
        score = (entropy - self.mean[0]) / self.deviation[0] * self.weight + self.bias
        if self.agrees:
            centred = (agreement - self.mean[1]) / self.deviation[1]
            score = score + centred * self.agreement_weight
        return self.ceiling * torch.sigmoid(score)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Gates of the first edition read the entropy as it is: they have no mean and no deviation."""
        for name in ("mean", "deviation"):
            state_dict.setdefault(prefix + name, getattr(self, name))
        super()._load_from_state_dict(state_dict, prefix, *args)


def normalised_entropy(scores: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """[batch] mean entropy of softmax(scores [batch, heads, queries, keys]) over real keys, divided by
    the log of their number; a mean over heads and real queries, in [0, 1]. 0 where there is one key."""
    hidden = ~keys.bool()[:, None, None, :]
    logs = scores.masked_fill(hidden, -torch.inf).log_softmax(-1)
    entropy = -(logs.exp() * logs.masked_fill(hidden, 0.0)).sum(-1)
    number = keys.sum(-1).to(scores.dtype)
    most = number.clamp(min=2).log()[:, None, None]
    share = torch.where(number[:, None, None] > 1, entropy / most, torch.zeros_like(entropy))
    real = queries[:, None, :].to(scores.dtype)
    return (share * real).sum((-1, -2)) / (real.sum((-1, -2)) * scores.shape[1])


def state_scores(target: Tensor, source: Tensor) -> Tensor:
    """h_T · h_Sᵀ / √n of equation 5, [batch, 1, queries, keys]: one head, no projection."""
    scores: Tensor = (target @ source.transpose(-1, -2)) * target.shape[-1] ** -0.5
    return scores[:, None]


def agreement_of(target: Tensor, source: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """[batch] mean over real target tokens of the largest cosine to a real source token."""
    left, right = (nn.functional.normalize(states, dim=-1) for states in (target, source))
    cosines = left @ right.transpose(-1, -2)
    nearest = cosines.masked_fill(~keys.bool()[:, None, :], -1.0).amax(-1)
    real = queries.to(nearest.dtype)
    return (nearest * real).sum(-1) / real.sum(-1)
