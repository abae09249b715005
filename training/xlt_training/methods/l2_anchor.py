"""L2 anchor: stay near the pretrained weights ("frustratingly simple regularization")."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from xlt_serve.errors import UsageError
from xlt_training.loop.method import Context, Method, Objective, Trait
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Loss

Anchors = list[tuple[nn.Parameter, Tensor]]


def anchors(
    model: Classifier, pretrained: Mapping[str, Tensor], chosen: Container[str] | None = None
) -> Anchors:
    """Each trained parameter of the encoder, its pooler too where that was pretrained, with its
    pretrained value, the present one where none is given. Parameter objects, not names: whatever
    wraps the model later, they are the same. ``chosen``: names of those to hold, None: all."""
    held = [
        (p, pretrained.get(name, p).detach().clone().to(p.device))
        for name, p in model.pretrained_parameters()
        if p.requires_grad and (chosen is None or name in chosen)
    ]
    if not held:
        raise UsageError("an anchor", "finds nothing of the encoder that moves", "leave it out")
    return held


def squared_distance(held: Anchors, weights: Sequence[Tensor] | None = None) -> Tensor:
    """Σ w (θ − θ*)², w one where no weights are given."""
    parts = []
    for number, (parameter, anchor) in enumerate(held):
        squares = (parameter - anchor).square()
        parts.append(squares.sum() if weights is None else (weights[number] * squares).sum())
    return torch.stack(parts).sum()


@dataclass
class L2Anchor(Method):
    """``loss + strength/2 · Σ (θ − θ*)²`` over the encoder's parameters.

    Data: none. Composes with everything; before ``noisy_tune``.
    """

    traits = frozenset({Trait.PENALTY, Trait.ANCHOR})

    strength: float = 0.01  # of the penalty

    def prepare(self, model: Classifier, batches: Sequence[Batch], context: Context) -> None:
        self._held = anchors(model, context.pretrained)

    def objective(self, model: Classifier, batch: Batch, inner: Objective) -> Loss:
        loss = inner(model, batch)
        term = 0.5 * self.strength * squared_distance(self._held)
        return replace(loss, total=loss.total + term, terms=loss.terms | {"l2_anchor": term})
