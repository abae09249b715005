"""The robustness benchmark: its attacks reach what they may, its judge is the served model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import attacks, misses
from benchmarks.robustness_report import compared, curve
from training import export
from training import model as models
from training.types import Example
from xlt_serve import certify, load
from xlt_serve.noise import Noise
from xlt_serve.pipeline import Classifier
from xlt_serve.smooth import Options
from xlt_serve.steps import Ask
from xlt_serve.synonyms import table

SIGMA = 0.1
NOISE = Noise("gaussian", SIGMA)
TEXT = "the goal was in our match with some team"


@pytest.fixture(scope="module")
def served(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    out = tmp_path_factory.mktemp("bundles") / "noisy"
    return load(export.export(checkpoint, out, export.Order(graphs=["perturbed"])).path)


def test_the_shift_reaches_the_served_model_as_it_would_torch(
    served: Classifier, checkpoint: Path
) -> None:
    network, _ = models.load(checkpoint)
    batch = network.batch([Example(TEXT, "sports", "en")])
    text = attacks.noisy_text(served, TEXT, 0, NOISE)
    shift = np.random.default_rng(0).normal(0, 1, (text.piece.length, network.width))
    moved = attacks.ShiftedText(text, shift.astype(np.float32))
    with torch.no_grad():
        embedded = network.embed(batch) + torch.tensor(moved.shift)
        expected = network(replace(batch, embeddings=embedded)).logits.numpy()
    run = attacks._runner(served, silent=True)
    found = run(Ask("perturbed", moved.rows([0])))["logits"]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert attacks.shifted_labels(served, [moved]) == [int(expected.argmax())]
    still = attacks.ShiftedText(text, None)
    [outcome] = attacks.shifted_votes(served, [still], Options(100))
    assert outcome.label == served.labels.index(served.predict([TEXT])[0].label or "")


def test_gradients_stay_inside_the_ball_and_go_the_right_way(
    served: Classifier, checkpoint: Path
) -> None:
    network, _ = models.load(checkpoint)
    example = Example(TEXT, "sports", "en")
    label = served.labels.index("sports")
    small = attacks.pgd(network, example, label, SIGMA, 0.05)
    assert np.linalg.norm(small) < 0.05
    large = attacks.pgd(network, example, label, SIGMA, 30.0)
    assert np.linalg.norm(large) < 30.0
    text = attacks.noisy_text(served, TEXT, 1, NOISE)
    [moved] = attacks.shifted_votes(served, [attacks.ShiftedText(text, large)], Options(100))
    assert moved.label != label  # with room enough, the attack wins


def test_substitutions_are_those_of_the_certificate(served: Classifier) -> None:
    lists = {"goal": ["bread", "soup"], "bread": ["soup"], "match": ["rain"], "team": ["wind"]}
    found = table(lists, "en", "")
    label = served.labels.index("sports")
    groups: dict[str, Any] = {w: {w, *o} for w, o in found.lists("groups").items()}
    attacked = attacks.substitution(served, TEXT, label, found, "groups", 99)
    before, after = TEXT.split(), attacked.split()
    assert len(before) == len(after)
    assert any(a != b for a, b in zip(before, after, strict=True))
    assert all(b in groups.get(a, {a}) for a, b in zip(before, after, strict=True))
    margins = attacks._margins(served, [TEXT, attacked], label)
    assert margins[1] < margins[0]
    one = attacks.substitution(served, TEXT, label, found, "groups", 1).split()
    assert sum(a != b for a, b in zip(before, one, strict=True)) == 1
    assert attacks.substitution(served, "the", label, found, "groups", 9) == "the"


def test_misses_are_counted_at_every_time() -> None:
    edges = misses.fewest(
        lambda k, n: certify.sequential_lower_bound(k, n, 0.05), 0.5, 30, range(1, 31)
    )
    for n, least in edges.items():
        assert least > n or certify.sequential_lower_bound(least, n, 0.05) > 0.5
        assert certify.sequential_lower_bound(least - 1, n, 0.05) <= 0.5
    found = misses.simulate(trials=150, draws=40)
    assert all(count <= 150 * 0.05 + 12 for count in found["0.05"].values())
    assert sum(found["0.001"].values()) <= 4
    assert misses.wrong_labels([0.0, 1.0], 10, 30, 0.001) == 0


def test_curves_and_differences() -> None:
    row = {"radius": [0.0, 0.2, 0.4, 0.5], "right": [False, True, False, True]}
    assert curve(row, [0.0, 0.3, 0.5]) == [0.5, 0.25, 0.0]
    rows = {
        "en": {"vanilla": [True, False] * 20, "smoothed": [True] * 40},
        "de": {"vanilla": [False] * 40, "smoothed": [True, False] * 20},
    }
    vanilla, smoothed, gap = compared(rows, {"en": "test", "de": "test"})
    assert (vanilla, smoothed) == (0.25, 0.75)
    assert gap.mean == 0.5
    assert 0.3 < gap.low <= gap.high < 0.7
