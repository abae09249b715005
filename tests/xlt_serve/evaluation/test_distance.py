"""Distances beside a formula, and beside texts that lie where they should."""

from __future__ import annotations

import json

import numpy as np
import pytest

from xlt_serve.evaluation import distance
from xlt_serve.evaluation.distance import MOST, TextSummary, summary


def cloud(rows: int, seed: int, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Texts of three labels around three corners."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(3, size=rows)
    return 6.0 * np.eye(3, 8)[labels] + spread * generator.normal(size=(rows, 8)), labels


def test_held_out_texts_of_the_same_kind_are_at_one() -> None:
    values, labels = cloud(2000, seed=0)
    found = summary("vector", values, labels, held=500)
    assert found is not None
    assert found.scale == pytest.approx(np.ones(8), abs=0.05)
    # Another share of the labels moves the mean of all texts, and no text.
    other, theirs = cloud(2000, seed=1)
    for chosen in (other, other[theirs == 0]):
        assert np.median(found.distances(chosen)) == pytest.approx(1.0, abs=0.03)
    between = np.full((1, 8), 2.0)  # between the corners, where texts of no label lie
    assert found.distances(between)[0] > 2
    assert np.median(found.distances(cloud(2000, seed=2, spread=2.0)[0])) == pytest.approx(
        2, abs=0.1
    )


def test_it_is_the_formula() -> None:
    found = TextSummary("vector", np.array([[0.0, 0.0], [4.0, 4.0]]), np.array([1.0, 2.0]), 0.5)
    wanted = np.sqrt((1.0**2 + (2.0 / 2) ** 2) / 2) / 0.5
    assert found.distances(np.array([[1.0, 2.0]]))[0] == pytest.approx(wanted)
    assert found.distances(np.array([[4.0, 4.0]]))[0] == 0
    many = np.random.default_rng(0).normal(size=(1000, 2))
    assert found.distances(many) == pytest.approx([found.distances(one[None])[0] for one in many])


def test_what_is_held_out_was_not_fitted_on() -> None:
    """Texts that the model knows by heart would make every other text seem far."""
    held, labels = cloud(200, seed=0)
    trained, theirs = cloud(100, seed=1, spread=0.1)
    found = summary("vector", np.vstack([held, trained]), np.append(labels, theirs), held=200)
    assert found is not None
    assert np.median(found.distances(cloud(1000, seed=2)[0])) == pytest.approx(1.0, abs=0.06)


def test_logits_say_the_same_shifted() -> None:
    values, labels = cloud(300, seed=0)
    found = summary("logits", values, labels, held=100)
    assert found is not None
    assert found.distances(values + 7) == pytest.approx(found.distances(values))


def test_it_comes_back_from_json() -> None:
    values, labels = cloud(300, seed=0)
    found = summary("logits", values, labels, held=100)
    assert found is not None
    again = distance.read(json.loads(json.dumps(found.to_dict())))
    assert again.distances(values) == pytest.approx(found.distances(values), rel=0.01)


def test_too_few_texts_and_too_many_numbers_have_no_summary() -> None:
    values, labels = cloud(300, seed=0)
    assert summary("logits", values[:8], labels[:8], held=8) is None
    assert summary("logits", values, labels, held=0) is None
    wide = np.zeros((300, MOST))
    assert summary("logits", wide, labels, held=100) is None
    assert summary("logits", np.zeros((300, 3)), labels, held=100) is None  # no spread at all
