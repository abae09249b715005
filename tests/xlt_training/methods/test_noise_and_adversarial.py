from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from xlt_training.loop.method import cross_entropy
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Loss
from xlt_training.methods.adversarial import Adversarial, worst_shift
from xlt_training.methods.noise import Noise, draw


def test_uniform_noise_fills_the_ball_and_spares_padding() -> None:
    torch.manual_seed(0)
    mask = torch.ones(50, 40)
    mask[:, 30:] = 0
    noise = draw(torch.zeros(50, 40, 16), mask, "uniform", 0.3, 0.0)
    assert noise.abs().max() <= 0.3
    assert noise[:, 30:].abs().max() == 0
    real = noise[:, :30]
    assert real.mean().abs() < 0.01
    assert real.var() == pytest.approx(0.3**2 / 3, rel=0.03)


def test_gaussian_noise_has_its_deviation() -> None:
    torch.manual_seed(0)
    assert draw(torch.zeros(1000, 64), None, "gaussian", 0, 0.25).std() == pytest.approx(
        0.25, rel=0.02
    )


@pytest.mark.parametrize("at", ["embeddings", "encoder"])
def test_noise_is_fresh_and_vanishes_with_its_size(
    model: Classifier, batch: Batch, at: str
) -> None:
    plain = cross_entropy(model, batch).total
    noisy = Noise(epsilon=0.5, at=at)  # type: ignore[arg-type]
    first, second = (noisy.objective(model, batch, cross_entropy).total for _ in range(2))
    assert first != second
    still = Noise(epsilon=0.0, at=at).objective(model, batch, cross_entropy).total  # type: ignore[arg-type]
    torch.testing.assert_close(still, plain)


def test_the_inner_maximum_of_a_linear_loss_is_its_closed_form() -> None:
    """max over ‖δ‖∞ ≤ ε of <g, δ> is ε‖g‖₁, at ε·sign(g)."""
    torch.manual_seed(0)
    slope = torch.randn(3, 5, 4)
    mask = torch.ones(3, 5)
    mask[2, 3:] = 0
    delta = worst_shift(lambda d: (slope * d).sum(), slope, mask, 0.1, steps=20, step_size=0.02)
    real = mask.unsqueeze(-1)
    torch.testing.assert_close(delta, 0.1 * slope.sign() * real)
    assert (slope * delta).sum().item() == pytest.approx(0.1 * (slope.abs() * real).sum().item())


def test_one_step_of_two_epsilon_reaches_the_corner_and_one_of_epsilon_does_not() -> None:
    """From a random start: a step of ε ends on average at ¾ of a linear loss's maximum."""
    torch.manual_seed(0)
    slope = torch.randn(20, 50, 16)

    def reached(step_size: float) -> float:
        delta = worst_shift(lambda d: (slope * d).sum(), slope, None, 0.1, 1, step_size)
        return ((slope * delta).sum() / (0.1 * slope.abs().sum())).item()

    assert reached(0.2) == pytest.approx(1.0)
    assert reached(0.1) == pytest.approx(0.75, abs=0.01)


def test_the_default_step_is_two_epsilon(model: Classifier, batch: Batch) -> None:
    """Where the loss is linear in the shift, its worst corner is trained on."""
    slope = torch.randn(len(batch.labels), 32)
    seen: list[torch.Tensor] = []

    def linear(network: Classifier, given: Batch) -> Loss:
        assert given.shift is not None
        seen.append(given.shift.detach())
        return Loss((slope * given.shift).sum())

    Adversarial(epsilon=0.05, at="encoder").objective(model, batch, linear)
    torch.testing.assert_close(seen[-1], 0.05 * slope.sign())


@pytest.mark.parametrize("at", ["embeddings", "encoder"])
def test_it_never_leaves_the_ball_nor_touches_padding(
    model: Classifier, batch: Batch, at: str
) -> None:
    seen: list[torch.Tensor] = []
    base = model.embed(batch).detach()

    def inner(network: Classifier, given: Batch) -> object:
        moved = given.embeddings - base if at == "embeddings" else given.shift  # type: ignore[operator]
        assert moved is not None
        seen.append(moved.detach())
        return cross_entropy(network, given)

    method = Adversarial(epsilon=0.05, steps=4, step_size=0.04, at=at)  # type: ignore[arg-type]
    method.objective(model, batch, inner)  # type: ignore[arg-type]
    assert len(seen) == 5
    for moved in seen:
        assert moved.abs().max() <= 0.05 + 1e-6
        if at == "embeddings":
            assert moved[batch.attention_mask == 0].abs().max() < 1e-6


def test_keep_best_never_ends_below_its_start(model: Classifier, batch: Batch) -> None:
    base = model.embed(batch).detach()

    def loss(delta: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model, replace(batch, embeddings=base + delta)).total

    for seed in range(5):
        torch.manual_seed(seed)
        start = worst_shift(loss, base, batch.attention_mask, 2.0, steps=0, step_size=1.0)
        torch.manual_seed(seed)
        # Steps as large as the ball overshoot; keep_best must still not lose.
        end = worst_shift(
            loss, base, batch.attention_mask, 2.0, steps=3, step_size=4.0, keep_best=True
        )
        assert loss(end) >= loss(start) - 1e-6


def test_it_makes_the_loss_worse_than_random_noise(model: Classifier, batch: Batch) -> None:
    torch.manual_seed(0)
    hard = Adversarial(epsilon=0.1, steps=3).objective(model, batch, cross_entropy).total
    random = Noise(epsilon=0.1).objective(model, batch, cross_entropy).total
    assert hard > random


def test_gradients_reach_the_word_embeddings(model: Classifier, batch: Batch) -> None:
    Adversarial().objective(model, batch, cross_entropy).total.backward()
    gradient = model.base.embeddings.word_embeddings.weight.grad
    assert gradient is not None
    assert gradient.abs().sum() > 0
