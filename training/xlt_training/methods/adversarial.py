"""ADV: train on the worst input within a small ball around E(x) (Robust-XLT, Huang 2021)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from xlt_serve.smoothing.noise import Place
from xlt_training.loop.method import Method, Objective, TrainedNoise, Trait, least_problems
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Loss


def worst_shift(
    loss: Callable[[Tensor], Tensor],
    like: Tensor,
    mask: Tensor | None,
    epsilon: float,
    steps: int,
    step_size: float,
    keep_best: bool = False,
) -> Tensor:
    """δ with ‖δ‖∞ ≤ ε that makes ``loss(δ)`` large: projected sign-gradient steps from a random start.

    ``mask`` [batch, length] keeps padding at zero. With ``keep_best`` the best δ seen is returned,
    the start among them, for one more evaluation.
    """
    real = 1.0 if mask is None else mask.unsqueeze(-1).to(like.dtype)
    delta = (epsilon * (2 * torch.rand_like(like) - 1) * real).detach()
    best, best_loss = delta, None
    for step in range(steps + keep_best):
        delta.requires_grad_(True)
        value = loss(delta)
        if keep_best and (best_loss is None or value.detach() > best_loss):
            best, best_loss = delta.detach(), value.detach()
        if step == steps:
            break
        # Only the sign is used: scaled up, small gradients survive half precision.
        (gradient,) = torch.autograd.grad(value * 2.0**16, delta)
        moved = delta.detach() + step_size * gradient.sign()
        delta = moved.clamp(-epsilon, epsilon) * real
    return best if keep_best else delta.detach()


@dataclass
class Adversarial(Method):
    """``min_f max_{‖δ‖∞ ≤ ε} CE(f(E(x)+δ), y)``.

    ``at``: E(x) at all real positions, or the encoder's output at the first token (the paper's
    literal formula). ``step_size`` 0 means 2ε: from wherever in the ball a walk starts, one such step
    reaches the worst corner of a linear loss. Data: none. Composes with what changes ids, written
    before it.
    """

    traits = frozenset({Trait.CHANGES_EMBEDDINGS, Trait.MAXIMISES})
    graphs = ("perturbed",)

    epsilon: float = 0.01  # greatest change of a coordinate
    steps: int = 1  # gradient steps towards the worst input
    step_size: float = 0.0  # length of one; 0: twice epsilon, which reaches the corner
    keep_best: bool = False  # take the worst input seen, not the last; one more pass
    at: Place = "embeddings"  # on E(x) at all positions, or on the output at the first token

    def problems(self) -> list[str]:
        return least_problems(self, 0, "epsilon", "steps", "step_size")

    def objective(self, model: Classifier, batch: Batch, inner: Objective) -> Loss:
        embedded = model.embed(batch) if self.at == "embeddings" else model.zero_shift(batch)
        fixed = embedded.detach()

        def moved(base: Tensor, delta: Tensor) -> Batch:
            if self.at == "embeddings":
                return replace(batch, embeddings=base + delta)
            return replace(batch, shift=base + delta)

        delta = worst_shift(
            lambda delta: inner(model, moved(fixed, delta)).total,
            like=fixed,
            mask=model.mask(batch) if self.at == "embeddings" else None,
            epsilon=self.epsilon,
            steps=self.steps,
            step_size=self.step_size or 2 * self.epsilon,
            keep_best=self.keep_best,
        )
        return inner(model, moved(embedded, delta))

    def noise(self) -> TrainedNoise:
        return TrainedNoise(self.at)
