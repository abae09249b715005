"""Isotropy, cosine, norms: numbers with a closed form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from xlt_training.loop import model as models
from xlt_training.loop.method import compose, cross_entropy
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Example
from xlt_training.methods.batch_norm import TokenBatchNorm
from xlt_training.methods.cosine import Cosine, mean_pairwise_cosine
from xlt_training.methods.isobn import FirstTokenIsoBN, IsoBN, isotropic_scale
from xlt_training.methods.isotropy import Isotropy, wasserstein_to_isotropic

from tests.xlt_training.methods.conftest import padded


def test_the_wasserstein_term_is_the_closed_form_of_known_gaussians() -> None:
    """‖μ‖² + Σ (σ_i − 1/√d)² for a diagonal covariance, against N(0, I/d)."""
    generator = np.random.default_rng(0)
    width, count = 6, 200_000
    deviations, mean = np.array([0.1, 0.5, 1.0, 0.3, 0.8, 0.05]), np.linspace(-0.5, 0.5, width)
    rotation, _ = np.linalg.qr(generator.normal(size=(width, width)))
    samples = (generator.normal(size=(count, width)) * deviations) @ rotation + mean
    expected = (mean**2).sum() + ((deviations - width**-0.5) ** 2).sum()
    given = wasserstein_to_isotropic(torch.from_numpy(samples)).item()
    assert given == pytest.approx(expected, rel=0.01)


def test_the_isotropic_gaussian_itself_is_at_zero() -> None:
    samples = torch.randn(200_000, 8, dtype=torch.float64) / 8**0.5
    assert wasserstein_to_isotropic(samples).item() == pytest.approx(0, abs=1e-3)


def test_for_unit_vectors_the_identity_holds() -> None:
    """‖μ‖² + tr Σ = 1, so W = 2 − (2/√d) tr Σ^½, with the root taken another way."""
    tokens = F.normalize(torch.randn(300, 12, dtype=torch.float64) + 0.5, dim=-1)
    centred = tokens - tokens.mean(0)
    values = torch.linalg.eigvalsh(centred.T @ centred / 300).clamp(min=0)
    expected = 2 - 2 / 12**0.5 * values.sqrt().sum()
    assert wasserstein_to_isotropic(tokens).item() == pytest.approx(expected.item(), abs=1e-9)


def test_it_is_differentiable_with_fewer_tokens_than_dimensions() -> None:
    tokens = torch.randn(5, 40, requires_grad=True)
    wasserstein_to_isotropic(F.normalize(tokens, dim=-1)).backward()
    assert tokens.grad is not None
    assert torch.isfinite(tokens.grad).all()
    assert tokens.grad.abs().sum() > 0


def test_pairwise_cosine_is_the_brute_force() -> None:
    tokens = torch.randn(30, 7, dtype=torch.float64)
    pairs = [
        F.cosine_similarity(tokens[i], tokens[j], dim=0)
        for i in range(30)
        for j in range(30)
        if i != j
    ]
    assert mean_pairwise_cosine(tokens).item() == pytest.approx(torch.stack(pairs).mean().item())


@pytest.mark.parametrize("method", [Isotropy(), Cosine()])
def test_padding_changes_no_term(
    model: Classifier, batch: Batch, method: Isotropy | Cosine
) -> None:
    narrow = compose([method])(model, batch)
    wide = compose([method])(model, padded(batch, 11, model.tokenizer.pad_token_id))
    for name, value in narrow.terms.items():
        torch.testing.assert_close(wide.terms[name], value, atol=1e-5, rtol=1e-5)
    assert narrow.total.item() == pytest.approx(sum(v.item() for v in narrow.terms.values()))


def test_token_batch_norm_is_that_of_the_real_tokens() -> None:
    torch.manual_seed(0)
    states, mask = (
        torch.randn(3, 5, 4),
        torch.tensor([[1] * 5, [1] * 3 + [0] * 2, [1] * 2 + [0] * 3]),
    )
    module, reference = TokenBatchNorm(4), torch.nn.BatchNorm1d(4)
    real = mask.bool()
    torch.testing.assert_close(module(states, mask)[real], reference(states[real]))
    torch.testing.assert_close(module.norm.running_mean, reference.running_mean)
    module.eval()
    reference.eval()
    torch.testing.assert_close(module(states, mask)[real], reference(states[real]))


def test_isobn_scales_by_hand_worked_numbers() -> None:
    """Two uncorrelated dimensions: γ_i = ½, so scale ∝ (σ_i/2 + ε)^−β, at equal total variance."""
    deviation = torch.tensor([2.0, 0.5], dtype=torch.float64)
    covariance = torch.diag(deviation**2)
    scale = isotropic_scale(deviation, covariance, beta=0.5, eps=0.0)
    raw = (deviation / 2) ** -0.5
    kept = (4.25 / (4 * raw[0] ** 2 + 0.25 * raw[1] ** 2)).sqrt()
    torch.testing.assert_close(scale, raw * kept)
    assert ((deviation * scale) ** 2).sum().item() == pytest.approx(4.25)


def test_isobn_keeps_running_statistics_and_leaves_other_tokens() -> None:
    torch.manual_seed(0)
    module = FirstTokenIsoBN(3, momentum=0.5, eps=1e-3, beta=0.5)
    states = torch.randn(64, 4, 3)
    out = module(states, torch.ones(64, 4))
    torch.testing.assert_close(out[:, 1:], states[:, 1:])
    expected = torch.cov(states[:, 0].T, correction=0) * 0.5
    torch.testing.assert_close(module.covariance, expected)
    before = module.covariance.clone()
    module.eval()
    module(states, torch.ones(64, 4))
    torch.testing.assert_close(module.covariance, before)


def test_isobn_scales_berts_pooled_output(encoders: dict[str, Path]) -> None:
    """As the authors do. The encoder calls its pooler too: that must not count among the statistics."""
    torch.manual_seed(0)
    made = models.build(str(encoders["bert"]), ["a", "b"], 32)
    IsoBN(momentum=0.5).attach(made)
    batch = made.batch([Example("rain and snow", "a", "en"), Example("goal", "b", "en")])
    for module in made.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    made.train()
    out = made(batch)
    pooled = made.base.pooler(out.last)
    norm = made.slots["isobn"]
    torch.testing.assert_close(norm.covariance, torch.cov(pooled.T, correction=0) * 0.5)
    scale = isotropic_scale(norm.deviation, norm.covariance, 0.5, 1e-3)
    torch.testing.assert_close(out.logits, made.hf.classifier(pooled * scale))


@pytest.mark.parametrize("at", ["pooled", "first_token"])
def test_isobn_statistics_survive_saving(
    encoders: dict[str, Path], tmp_path: Path, at: str
) -> None:
    """Checkpoints of the first edition do not say where it was; it was at the first token."""
    torch.manual_seed(0)
    made = models.build(str(encoders["bert"]), ["a", "b"], 32)
    IsoBN(at=at).attach(made)  # type: ignore[arg-type]
    made.train()
    said = {"name": "isobn", "momentum": 0.05, "eps": 1e-3, "beta": 0.5}
    said |= {"at": at} if at == "pooled" else {}
    batch = made.batch([Example("rain and snow", "a", "en"), Example("goal", "b", "en")])
    cross_entropy(made, batch)
    made.eval()
    description = models.Description(
        "sib200",
        False,
        ["a", "b"],
        "en",
        32,
        {"stages": [{"methods": [said]}]},
    )
    models.save(tmp_path, made, description)
    again, _ = models.load(tmp_path)
    assert made.slots["isobn"].covariance.abs().sum() > 0
    torch.testing.assert_close(again.slots["isobn"].covariance, made.slots["isobn"].covariance)
    torch.testing.assert_close(again(batch).logits, made(batch).logits)
