"""The vote, against a grid and against a simulation whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from xlt_training.methods.vote_fit import Ballots, fit, joined, likelihood

from xlt_serve.modes.vote import Vote


def ballots(count: int, offset: float, slope: float, seed: int) -> Ballots:
    """Two streams that disagree, of which the translation's is right as often as the vote says."""
    generator = torch.Generator().manual_seed(seed)
    agreement = torch.rand(count, generator=generator)
    weight = torch.sigmoid(offset + slope * agreement)
    truth = torch.randint(2, (count,), generator=generator)
    by_translation = torch.rand(count, generator=generator) < weight
    sure = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    said = torch.where(by_translation, truth, 1 - truth)
    translation = (sure[1 - said] * 0.998 + 0.001).log()
    text = (sure[said] * 0.998 + 0.001).log()
    return Ballots(agreement, text, translation, truth, agreement > 0.5)


def test_the_vote_that_was_true_is_found() -> None:
    found = fit(ballots(20_000, offset=-3.0, slope=6.0, seed=0))
    assert found["agreement_offset"] == pytest.approx(-3.0, abs=0.25)
    assert found["agreement_slope"] == pytest.approx(6.0, abs=0.4)


def test_no_other_vote_is_likelier() -> None:
    made = ballots(400, offset=-1.0, slope=3.0, seed=1)
    found = fit(made)

    def loss(offset: float, slope: float) -> float:
        temperature = found["temperature"]
        given = likelihood(made, torch.tensor(offset), torch.tensor(slope), temperature)
        return -float(given.mean())

    best = loss(found["agreement_offset"], found["agreement_slope"])
    grid = [loss(o, s) for o in np.linspace(-4, 4, 33) for s in np.linspace(-4, 8, 49)]
    assert best <= min(grid) + 2e-3


def test_streams_that_say_the_same_leave_the_papers_half() -> None:
    made = ballots(100, 0.0, 0.0, seed=2)
    same = Ballots(made.agreement, made.text, made.text, made.truth, made.good)
    found = fit(same)
    assert found["agreement_offset"] == pytest.approx(0, abs=1e-6)
    assert found["agreement_slope"] == pytest.approx(0, abs=1e-6)


def test_of_good_translations_few_are_turned_down() -> None:
    made = joined([ballots(1000, -1.0, 3.0, seed) for seed in (3, 4)])
    vote = Vote.fitted(fit(made))
    good = [float(a) for a in made.agreement[made.good]]
    assert sum(vote.turned_down(a) is not None for a in good) / len(good) <= 0.05
    assert all(vote.turned_down(a) is not None for a in (0.0, 0.3))


def test_training_and_serving_weigh_alike() -> None:
    made = ballots(50, -1.0, 3.0, seed=5)
    vote = Vote(offset=-1.0, slope=3.0)
    weights = np.array([vote.weight(float(a)) for a in made.agreement])
    rows = np.arange(50)
    expected = np.log(
        (1 - weights) * made.text.exp().numpy()[rows, made.truth]
        + weights * made.translation.exp().numpy()[rows, made.truth]
    )
    given = likelihood(made, torch.tensor(-1.0), torch.tensor(3.0))
    np.testing.assert_allclose(given.numpy(), expected, atol=1e-5)
