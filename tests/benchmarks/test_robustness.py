"""The robustness benchmark: its attacks reach what they may, its judge is the served model."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from xlt_training.exporting import checkpoint as export
from xlt_training.loop import model as models
from xlt_training.loop import trainer
from xlt_training.loop.types import Example

from benchmarks import attacks, misses, robustness, robustness_report
from benchmarks.robustness_report import compared, curve
from xlt_serve import load
from xlt_serve.classifier import Classifier
from xlt_serve.runtime.steps import RunRequest
from xlt_serve.smoothing import certify
from xlt_serve.smoothing.noise import Noise
from xlt_serve.smoothing.votes import PollOptions
from xlt_serve.text.synonyms import table

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
    found = run(RunRequest("perturbed", moved.rows([0])))["logits"]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert attacks.shifted_labels(served, [moved]) == [int(expected.argmax())]
    still = attacks.ShiftedText(text, None)
    [outcome] = attacks.shifted_votes(served, [still], PollOptions(100))
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
    [moved] = attacks.shifted_votes(served, [attacks.ShiftedText(text, large)], PollOptions(100))
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


@pytest.fixture
def benchmark(
    served: Classifier,
    checkpoint: Path,
    toy_data: Path,
    encoders: dict[str, Path],
    tmp_path: Path,
) -> robustness.Benchmark:
    """With every model already trained and served: the toy classifier in all their places."""
    options = argparse.Namespace(
        data=toy_data, encoder=str(encoders["xlm-roberta"]), languages="", sigmas=str(SIGMA),
        texts=6, draws=1000, attacked=3, synonym_texts=2, alpha=0.001, precision="fp32",
        override=[], work=tmp_path / "work", out=tmp_path / "out.json",
    )  # fmt: skip
    made = robustness.Benchmark(options)
    made.sigma, made.noise, made.noisy = SIGMA, NOISE, f"noise-{SIGMA}"
    made.of = lambda name: served  # type: ignore[method-assign]
    (made.work / "runs").mkdir()
    (made.work / "runs" / made.noisy).symlink_to(checkpoint)
    return made


def test_attacks_are_on_the_certified_label_and_judged_by_predict(
    benchmark: robustness.Benchmark, served: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = benchmark.certified("en", benchmark.noisy)
    labels, radii = certificates["label"], certificates["radius"]
    assert [label is None for label in labels] == [radius <= 0 for radius in radii]
    texts = benchmark.items["en"]
    for label, right, example in zip(labels, certificates["right"], texts, strict=False):
        assert right == (label is not None and served.labels[label] == example.label)
    # One text without a certificate, and one whose certificate names what the model would not.
    other = (labels[1] + 1) % 3
    doctored = {"label": [None, other, *labels[2:]], "radius": [0.0, 0.01, *radii[2:]]}
    attacked: list[int] = []
    pgd = attacks.pgd

    def watched(network: Any, example: Example, label: int, *more: Any, **how: Any) -> Any:
        attacked.append(label)
        return pgd(network, example, label, *more, **how, steps=1, draws=1)

    monkeypatch.setattr(attacks, "pgd", watched)
    name = served.labels[labels[2]]
    early = {"label": [None, name, name], "reached": [0.0, 0.0, radii[2] / 2]}
    monkeypatch.setattr(
        benchmark, "stage", lambda stage, *_: early if stage.startswith("to-") else doctored
    )
    found = benchmark.pgd("en")
    assert found["uncertified"] == 1 + 2
    fixed, last = found["attacks"][:3], found["attacks"][3]
    assert attacked == [x for x in (other, *labels[2:4]) for _ in robustness.FACTORS] + [labels[2]]
    assert [row["label"] for row in fixed] == [other, *labels[2:4]]
    assert fixed[0]["fell"]["1"]  # 1,000 draws decide for the model's own label
    for row in fixed:
        assert not any(row["fell"][f] and row["abstained"][f] for f in ("1", "4", "16"))
    assert (last["kind"], last["radius"], list(last["fell"])) == ("served", radii[2] / 2, ["1"])


def test_the_judge_abstains_where_votes_are_divided(
    benchmark: robustness.Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    votes = [0, 1] * (robustness.JUDGES // 2)
    asked: list[int] = []

    def runner(*_: Any, **__: Any) -> Any:
        def run(ask: RunRequest) -> dict[str, Any]:
            asked.append(len(ask.rows))
            return {"logits": np.eye(3)[votes]}

        return run

    monkeypatch.setattr(attacks, "_runner", runner)
    text = attacks.ShiftedText(attacks.noisy_text(benchmark.of(""), TEXT, 7, NOISE), None)
    assert benchmark.judged(text) is None
    votes = [2] * 600 + [1] * 400
    assert benchmark.judged(text) == 2
    assert asked == [1000, 1000]


def test_sigma_is_chosen_on_english_dev_alone(
    benchmark: robustness.Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def mean_right(served: Classifier, items: dict[str, Any], **how: Any) -> float:
        asked.append([f"{lg} {len(rows)}" for lg, rows in items.items()])
        return 0.9 if how.get("smoothing") is None or how["smoothing"].scale < 0.3 else 0.5

    monkeypatch.setattr(benchmark, "mean_right", mean_right)
    assert benchmark.choose_sigma()["sigma"] == pytest.approx(0.2)
    assert asked
    assert all(where == ["en 30"] for where in asked)


def test_a_certificate_as_it_is_served_takes_fewer_draws(benchmark: robustness.Benchmark) -> None:
    found = benchmark.to_certificate("de")
    assert len(found["draws"]) == len(found["certified"]) == 6
    assert found["radius"] == pytest.approx(0.05)
    assert any(found["certified"])
    for draws, certified in zip(found["draws"], found["certified"], strict=True):
        assert draws < 1000 or not certified


def test_what_is_kept_is_of_one_encoder(
    benchmark: robustness.Benchmark,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = benchmark.work / "sigma.json"
    kept.write_text("{}")
    robustness.Benchmark(benchmark.options)
    assert kept.exists()
    monkeypatch.setattr(trainer, "weights_digest", lambda _: "another")
    robustness.Benchmark(benchmark.options)
    assert "removed, to train again" in capsys.readouterr().out
    assert not kept.exists()
    assert not (benchmark.work / "runs").exists()
    noted = json.loads((benchmark.work / "options.json").read_text())
    assert noted["runs"]["noise"]["encoder_weights"] == "another"
    benchmark.options.draws = 7
    with pytest.raises(SystemExit, match="has other options"):
        robustness.Benchmark(benchmark.options)


@pytest.mark.slow
def test_from_the_models_to_the_report(
    benchmark: robustness.Benchmark,
    served: Classifier,
    toy_data: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Everything that is measured, and the page and the picture of it; training apart."""
    with_words = load(
        served.bundle.path, synonyms={"en": toy_data / "lexicons" / "en-synonyms.json"}
    )
    monkeypatch.setattr(benchmark, "of", lambda name: with_words)
    tried = [{"sigma": SIGMA, "plain": 0.9, "smoothed": 0.9, "fits": True}]
    choice = {"sigma": SIGMA, "found": True, "vanilla": 0.9, "tried": tried}
    monkeypatch.setattr(benchmark, "choose_sigma", lambda: choice)
    simulated = misses.simulate(trials=5, draws=20)
    monkeypatch.setattr(misses, "simulate", lambda trials: simulated)
    benchmark.options.trials, benchmark.options.attacked = 5, 1
    results = json.loads(json.dumps(benchmark.run()))
    page = robustness_report.page(results)
    for title in (
        "## Goals",
        "## Draws to a certificate",
        "## How attacks on certified labels ended",
    ):
        assert title in page
    robustness_report.draw(results, tmp_path / "curves.png")
    assert results["plain_accuracy"]["within_one_point"]  # one and the same model
    assert set(results["to_certificate"]) == {"en", "de"}


def test_the_report_of_what_was_added() -> None:
    plain = robustness.plain_accuracy(
        {"en": [True, True], "de": [True, False]}, {"en": [True, True], "de": [False, False]}
    )
    assert plain["rows"]["mean"] == {"vanilla": 0.75, "noise": 0.5, "difference": -0.25}
    assert not plain["within_one_point"]
    same = {"en": [True] * 99 + [False]}
    assert robustness.plain_accuracy({"en": [True] * 100}, same)["within_one_point"]
    attack = {
        "fell": {"1": False, "4": False, "16": True},
        "abstained": dict.fromkeys(["1", "4", "16"], True),
    }
    results: dict[str, Any] = {
        "plain_accuracy": plain,
        "to_certificate": {
            "en": {
                "radius": 0.05,
                "limit": 1000,
                "draws": [24, 30, 1000],
                "certified": [True, True, False],
            }
        },
        "pgd": {"en": {"attacks": [attack], "uncertified": 4}},
    }
    text = "\n".join(
        [
            robustness_report.plain_after_noise(results["plain_accuracy"]),
            robustness_report.draws_to_a_certificate(results["to_certificate"]),
            robustness_report.ends_of_attacks(results["pgd"]),
        ]
    )
    assert "| de | 0.500 | 0.000 | -0.500 |" in text
    assert "Within one point of vanilla in the mean: no." in text
    assert "a median of 30 votes, where a fixed number takes 1000" in text
    assert "| 16 × radius | 1 | 1 | 1 |" in text
    assert "4 texts beside them had none to attack" in text


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
