"""Smoothed prediction: against exact probabilities, fixed-n votes, and in any batch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest
from xlt_training.exporting import checkpoint as export

from tests.xlt_serve.smoothing.near_boundary import changed_votes
from xlt_serve import load, modes
from xlt_serve.classifier import Classifier
from xlt_serve.errors import UsageError
from xlt_serve.modes.draws import NoisyText, polled
from xlt_serve.modes.smoothed import Smoothing
from xlt_serve.runtime.batching import plan
from xlt_serve.runtime.graph_io import PerturbedRow
from xlt_serve.runtime.steps import Outputs, RunRequest, drive, join
from xlt_serve.smoothing import certify
from xlt_serve.smoothing.noise import Noise, draw, stream_key
from xlt_serve.smoothing.votes import PollOptions, PollOutcome
from xlt_serve.text.tokens import Piece

NOISE = Noise("gaussian", 1.0)


def half_space(rows: Sequence[PerturbedRow]) -> npt.NDArray[np.float64]:
    """A text is a point on a line, its first id; class 0 where point + noise > 0.

    Its smoothed probability is Φ(point/σ), and the certified radius can't exceed the point.
    """
    values = np.array([r.piece.ids[0] / 100 + draw(r.key, r.number, (1,), NOISE)[0] for r in rows])
    return np.stack([values, -values, np.full_like(values, -99)], axis=1)


def ask(
    points: list[int],
    options: PollOptions,
    radius: float | None = None,
    seed: int = 0,
    budget: int = 64,
) -> list[PollOutcome]:
    keys = [stream_key(seed, str((point, number))) for number, point in enumerate(points)]
    voters = [
        NoisyText(Piece([point], [0]), key, NOISE, radius)
        for point, key in zip(points, keys, strict=True)
    ]

    def run(ask: RunRequest) -> Outputs:
        batches = plan([row.length for row in ask.rows], budget)
        parts = [(batch, {"logits": half_space([ask.rows[i] for i in batch])}) for batch in batches]  # type: ignore[misc]
        return join(parts, len(ask.rows))

    return drive(polled(voters, 3, options), run)


def test_clear_texts_take_few_draws_and_close_ones_abstain() -> None:
    clear, other, close = ask([400, -400, 0], PollOptions(samples=200))
    assert (clear.label, other.label, close.label) == (0, 1, None)
    assert clear.draws == certify.fewest_votes(0.0005)
    assert clear.votes == (clear.draws, 0, 0)
    assert close.draws == 200
    assert sum(close.votes) == 200


def test_votes_are_those_of_a_fixed_number_of_draws() -> None:
    """Early stopping reads a prefix of the same stream, and comes to the same label."""
    points = [150, -150, 80, -90, 250]
    early = ask(points, PollOptions(samples=2000))
    for point, number, outcome in zip(points, range(5), early, strict=True):
        key = stream_key(0, str((point, number)))
        piece = Piece([point], [0])
        rows = [PerturbedRow(piece, key, n, NOISE) for n in range(1000)]
        votes = half_space(rows).argmax(axis=1).tolist()
        counts = Counter(votes[: outcome.draws])
        assert outcome.votes == tuple(counts[c] for c in range(3))
        assert outcome.label == certify.predict([votes.count(c) for c in range(3)], 0.001)


def test_batches_change_nothing() -> None:
    points = [120, -300, 40, 500]
    options = PollOptions(samples=300)
    together = ask(points, options, radius=0.3)
    for budget in (1, 7, 1000):
        assert ask(points, options, radius=0.3, budget=budget) == together


@pytest.mark.parametrize("radius", [0.5, 1.0])
def test_certificates_are_true_and_about_as_large_as_they_can_be(radius: float) -> None:
    """The truth is known: a text at distance t from the boundary is safe up to t, no further."""
    outcomes = ask([250] * 100, PollOptions(samples=2000), radius, seed=1)
    assert all(o.certified and o.label == 0 and o.reach >= radius for o in outcomes)
    assert all(o.reach <= 2.5 for o in outcomes)
    too_much = ask([int(100 * radius) - 20] * 100, PollOptions(samples=500), radius, seed=2)
    assert not any(o.certified for o in too_much)
    for outcome in [*outcomes, *too_much]:
        if outcome.lower_bound > 0.5 + 2 * NOISE.changed:
            normal = NormalDist()
            exact = normal.inv_cdf(outcome.lower_bound - NOISE.changed)
            expected = exact - normal.inv_cdf(0.5 + NOISE.changed)
            assert outcome.reach == pytest.approx(max(expected, radius * outcome.certified))


def test_uniform_noise_has_its_own_formula() -> None:
    noise = Noise("uniform", 0.5)
    assert noise.radius(0.9) == pytest.approx(0.4 - 2 * noise.changed)
    assert noise.threshold(0.4) == pytest.approx(0.9 + 2 * noise.changed)
    assert NOISE.radius(0.5) == 0.0
    assert noise.norm == "l1"


def test_wrong_labels_and_bounds_are_as_rare_as_alpha_says() -> None:
    """2,000 texts so close to the boundary that a careless vote would often be wrong."""
    alpha = 0.05
    points = [10] * 1000 + [-10] * 1000
    outcomes = ask(points, PollOptions(samples=150, alpha=alpha), budget=100_000)
    truth = NormalDist().cdf(0.1)
    wrong = sum(
        (o.label is not None and o.label != (0 if point > 0 else 1)) or o.lower_bound > truth
        for point, o in zip(points, outcomes, strict=True)
    )
    assert wrong <= alpha * 2000 + 3 * math.sqrt(2000 * alpha * (1 - alpha))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"samples": 0}, "samples=0.*between 1 and 100000"),
        ({"alpha": 1.0}, "alpha=1.0.*at least 1e-38 and less than 1"),
        ({"radius": -1.0}, "radius=-1.0.*positive"),
        ({"noise": "laplace", "scale": 1.0}, "must be one of gaussian, uniform, synonym"),
        ({"noise": "synonym"}, "has no table of synonyms"),
        ({"noise": "uniform"}, "give both noise and scale"),
    ],
)
def test_wrong_options_are_named(noisy: Classifier, bad: dict[str, object], message: str) -> None:
    given = bad if "noise" in bad else {"noise": "gaussian", "scale": 0.1} | bad
    with pytest.raises(UsageError, match=message):
        noisy.predict(["goal"], mode="smoothed", smoothing=Smoothing(**given))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def noisy(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    out = tmp_path_factory.mktemp("bundles") / "noisy"
    return load(export.export(checkpoint, out, export.Order(graphs=["perturbed"])).path)


@pytest.fixture(scope="module")
def halved(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    order = export.Order(graphs=["perturbed"], precision="fp16")
    return load(export.export(checkpoint, tmp_path_factory.mktemp("bundles") / "half", order).path)


TEXTS = ["goal match team score", "bread soup cheese dinner", "rain", "we saw it " * 12]


def test_a_bundle_votes_the_same_in_any_company(noisy: Classifier) -> None:
    asked = Smoothing(samples=60, seed=5, noise="gaussian", scale=0.2)
    together = noisy.predict([*TEXTS, "", None], mode="smoothed", smoothing=asked)
    assert [p.error.code for p in together[-2:] if p.error] == ["empty", "not_text"]
    for text, answer in zip(TEXTS, together, strict=False):
        [alone] = noisy.predict([text], mode="smoothed", smoothing=asked)
        assert alone == answer
        assert answer.smoothed is not None
        votes = answer.smoothed
        assert sum(votes.votes.values()) == votes.draws <= 60
        assert answer.probabilities == pytest.approx(
            {name: count / votes.draws for name, count in votes.votes.items()}
        )
        assert (answer.abstained == "votes") == (answer.label is None)
        assert "trained without noise" in str(votes.warning)
    clear = together[0]
    assert clear.label == noisy.predict([TEXTS[0]])[0].label


def test_no_noise_to_speak_of_gives_the_plain_label(noisy: Classifier) -> None:
    tiny = Smoothing(noise="uniform", scale=1e-6)
    for plain, smoothed in zip(
        noisy.predict(TEXTS), noisy.predict(TEXTS, mode="smoothed", smoothing=tiny), strict=True
    ):
        assert smoothed.label == plain.label
        assert smoothed.smoothed is not None
        assert smoothed.smoothed.draws == certify.fewest_votes(0.0005)


def test_a_certificate_is_on_the_wire(noisy: Classifier) -> None:
    asked = Smoothing(samples=500, seed=1, noise="gaussian", scale=0.05, radius=0.01)
    [answer] = noisy.predict([TEXTS[0]], mode="smoothed", smoothing=asked)
    wire = answer.to_dict()
    assert wire["mode"] == "smoothed"
    assert wire["seed"] == 1
    certificate = wire["certificate"]
    assert certificate["radius"] >= 0.01
    assert {k: certificate[k] for k in ("norm", "at", "noise", "scale", "alpha")} == {
        "norm": "l2",
        "at": "embeddings",
        "noise": "gaussian",
        "scale": 0.05,
        "alpha": 0.001,
    }
    again = Smoothing(samples=500, noise="gaussian", scale=0.05)
    seeds = {
        noisy.predict(["goal"], mode="smoothed", smoothing=again)[0].smoothed.seed for _ in "ab"
    }  # type: ignore[union-attr]
    assert len(seeds) == 2


def test_what_smoothing_needs_is_said(bundle: Path, noisy: Classifier) -> None:
    with pytest.raises(UsageError, match=r"needs a bundle with the perturbed graph.*--graphs"):
        load(bundle).predict(["goal"], mode="smoothed")
    with pytest.raises(UsageError, match="windows"):
        noisy.predict(["goal"], mode="smoothed", long="windows")
    with pytest.raises(UsageError, match=r"must be one of plain.*smoothed"):
        noisy.predict(["goal"], mode="magic")


@pytest.mark.parametrize("count", [1, 2001])
def test_as_many_labels_as_can_be_voted_for(noisy: Classifier, count: int) -> None:
    bundle = noisy.bundle
    labels = tuple(map(str, range(count)))
    context = replace(
        noisy.context, bundle=replace(bundle, manifest=replace(bundle.manifest, labels=labels))
    )
    settings = modes.settings("smoothed", noise="gaussian", scale=0.1)
    with pytest.raises(UsageError, match=f"has {count} labels; votes need 2 to 2000"):
        modes.of(settings).refuse_unfit(context, settings)


NEAR = ["The minister visited the match.", "A song about mountains."]
"""Of the shipped bundle: texts that are short, and near a boundary."""


@pytest.mark.parametrize(
    ("precision", "scale"), [("fp32", 0.1), ("fp16", 0.1), ("int8", 0.1), ("int8", 0.01)]
)
def test_rounding_changes_no_more_votes_than_a_radius_allows_for(
    noisy: Classifier, halved: Classifier, precision: str, scale: float
) -> None:
    """Where about half of the draws agree: there a radius ends. Decision 0011 has longer runs."""
    noise = Noise("gaussian", scale, precision=precision)
    classifier = {"fp32": noisy, "fp16": halved}.get(precision) or load("topics")
    assert classifier.bundle.manifest.graphs["perturbed"].precision == precision
    texts, draws = (NEAR if precision == "int8" else TEXTS[:2]), 512
    rounding = 2.0**-11 if precision == "fp16" else 2.0**-24
    changed, allowed = changed_votes(classifier, texts, noise, draws, rounding)
    assert changed <= allowed + 3 * math.sqrt(allowed)
