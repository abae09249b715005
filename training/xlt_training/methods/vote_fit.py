"""How much a translation's stream may say, learnt from translations that are good and that are not.

The model knows its own training sentences by heart, and would be right on them whatever the
translation says. So each half of them is judged by a model that was trained on the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xlt_serve.calibration import fit_temperature

TURNED_DOWN = 0.04
"""Of good translations, this share agrees less with its text than the bound."""


@dataclass(frozen=True)
class Ballots:
    """Pairs that a model was not trained on. agreement, truth: [n]; text, translation: [n, labels] logits
    of the two streams; good: [n] the translation was left as it is."""

    agreement: Tensor
    text: Tensor
    translation: Tensor
    truth: Tensor
    good: Tensor


def joined(parts: Sequence[Ballots]) -> Ballots:
    names = ("agreement", "text", "translation", "truth", "good")
    return Ballots(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def likelihood(ballots: Ballots, offset: Tensor, slope: Tensor, temperature: float = 1.0) -> Tensor:
    """[n] log-probability of the truth, where the translation's weight is σ(offset + slope·a)."""
    score = offset + slope * ballots.agreement
    rows = torch.arange(len(ballots.truth))
    text, translation = (
        (stream / temperature).log_softmax(-1)[rows, ballots.truth]
        for stream in (ballots.text, ballots.translation)
    )
    log = torch.nn.functional.logsigmoid
    return torch.logaddexp(log(-score) + text, log(score) + translation)


def fit(ballots: Ballots) -> dict[str, float]:
    """The vote of least loss, as the manifest keeps it, and the bound below which none is held; at the
    temperature that fits the mean of both streams where the translations are good.

    A weak prior around no dependence, worth one pair, keeps the slope finite where damage and
    agreement are told apart without an error.
    """
    exact = Ballots(
        ballots.agreement.double(),
        ballots.text.double(),
        ballots.translation.double(),
        ballots.truth,
        ballots.good,
    )
    good = exact.good
    streams = torch.stack([exact.text[good], exact.translation[good]], dim=1)
    temperature = fit_temperature(streams.numpy(), exact.truth[good].numpy())
    centre, scale = exact.agreement.mean(), exact.agreement.std().clamp(min=1e-6)
    parameters = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([parameters], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        slope = parameters[1] / scale
        value = -likelihood(exact, parameters[0] - slope * centre, slope, temperature).sum()
        value = (value + 0.5 * parameters.square().sum()) / len(exact.truth)
        value.backward()
        return value

    optimiser.step(loss)
    offset, slope = parameters[0] - parameters[1] / scale * centre, parameters[1] / scale
    return {
        "temperature": temperature,
        "examples": float(len(exact.truth)),
        "agreement_offset": float(offset.detach()),
        "agreement_slope": float(slope.detach()),
        "agreement_least": float(exact.agreement[exact.good].quantile(TURNED_DOWN)),
    }
