"""Class weights: scikit-learn's formula, torch's weighted cross-entropy, in every method's loss."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from xlt_training.data import load_split
from xlt_training.loop import config, trainer
from xlt_training.loop import model as models
from xlt_training.loop.class_weights import refuse_unknown, weights_of
from xlt_training.loop.method import classification, compose
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch
from xlt_training.methods.ear import EAR
from xlt_training.methods.xmixup import XMixup

from tests.xlt_training.contexts import context_of
from xlt_serve.errors import ConfigError, UsageError

LABELS = ["food", "sports", "weather"]
WEIGHTS = [0.25, 3.0, 1.5]


@pytest.fixture
def model(encoders: dict[str, Path]) -> Classifier:
    torch.manual_seed(0)
    made = models.build(str(encoders["xlm-roberta"]), LABELS, 64)
    made.eval()
    made.class_weights = torch.tensor(WEIGHTS)
    return made


@pytest.fixture
def batch(model: Classifier, toy_data: Path) -> Batch:
    rows = load_split("sib200", toy_data, "train", "en")[:7]  # of one label three, of others two
    return model.batch([replace(e, source=e.texts()) for e in rows])


def test_balanced_is_scikit_learns() -> None:
    """Its documentation's example; and n / (k · bincount(y)) by numpy."""
    assert weights_of("balanced", ["0", "1"], ["1", "1", "1", "1", "0", "0"]) == [1.5, 0.75]
    y = np.array([0, 2, 2, 1, 2, 2, 0, 2])
    expected = len(y) / (3 * np.bincount(y))
    assert weights_of("balanced", ["0", "1", "2"], map(str, y)) == pytest.approx(expected)


@given(st.lists(st.sampled_from("abc"), min_size=1))
def test_balanced_labels_weigh_alike_in_all(truth: list[str]) -> None:
    labels = sorted(set(truth))
    weights = weights_of("balanced", labels, truth)
    assert weights is not None
    counts = Counter(truth)
    shares = [weights[i] * counts[label] for i, label in enumerate(labels)]
    assert shares == pytest.approx([len(truth) / len(labels)] * len(labels))


def test_a_table_weighs_what_it_names() -> None:
    assert weights_of({"sports": 2}, LABELS, []) == [1.0, 2.0, 1.0]
    assert weights_of("none", LABELS, LABELS) is None


def test_a_label_that_is_none_is_told_with_those_there_are() -> None:
    with pytest.raises(UsageError) as told:
        refuse_unknown(
            [{"wether": 2.0, "food": 1.0}, "balanced", {"wether": 2.0, "x": 1.0}], LABELS
        )
    assert str(told.value) == (
        "train.class_weights: 'wether' is no label of the train set, did you mean 'weather'?; "
        "'x' is no label of the train set; the labels are food, sports, weather"
    )


def test_the_loss_is_torchs_weighted_one(model: Classifier, batch: Batch) -> None:
    logits = model(batch).logits
    expected = F.cross_entropy(logits, batch.labels, weight=torch.tensor(WEIGHTS))
    assert compose([])(model, batch).total == expected
    # By hand: the mean of −w log p, divided by the weights that were met.
    chosen = logits.log_softmax(-1)[torch.arange(len(batch.labels)), batch.labels]
    weights = torch.tensor(WEIGHTS)[batch.labels]
    torch.testing.assert_close(expected, -(weights * chosen).sum() / weights.sum())
    assert expected != F.cross_entropy(logits, batch.labels)


def test_it_is_weighted_in_half_precision_too(model: Classifier, batch: Batch) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch).logits
        loss = classification(model, logits, batch.labels)
    expected = F.cross_entropy(logits.float(), batch.labels, weight=torch.tensor(WEIGHTS))
    torch.testing.assert_close(loss.float(), expected)


def test_both_streams_of_ear_and_of_xmixup_are_weighted(
    model: Classifier, batch: Batch, toy_data: Path
) -> None:
    weights = torch.tensor(WEIGHTS)
    context = context_of(toy_data, steps=50)
    ear = EAR(push="none", pull="none")
    ear.prepare(model, [batch], context)
    loss = compose([ear])(model, batch)
    for name, out in zip(("cross_entropy", "copy/cross_entropy"), loss.outputs, strict=True):
        expected = F.cross_entropy(out.logits, batch.labels, weight=weights)
        assert loss.terms[name] == expected
    mixup = XMixup(scheduled_sampling=False, damage=0.0, alpha=0.4)
    mixup.attach(model)
    mixup.prepare(model, [batch], context)
    loss = mixup.objective(model, batch, compose([]))
    target, source = loss.outputs
    for name, share, out in (("target", 0.6, target), ("source", 0.4, source)):
        expected = share * F.cross_entropy(out.logits, batch.labels, weight=weights)
        torch.testing.assert_close(loss.terms[name], expected)


def test_the_config_takes_words_and_tables(config_file: Path) -> None:
    for said, kept in (("balanced", "balanced"), ("{food = 2}", {"food": 2.0})):
        made = config.load(config_file, [f"train.class_weights={said}", "train.head_first=1"])
        assert [stage.train.class_weights for stage in made.stages] == [kept, kept]
    for wrong, words in (
        ("balancd", "must be one of ['none', 'balanced'], was: 'balancd'"),
        ("{food = 'much'}", "must be a table of numbers, was: {'food': 'much'}"),
        ("{food = true}", "must be a table of numbers"),
        ("{food = 0}", "class_weights.food must be positive, was: 0.0"),
        ("{food = inf}", "class_weights.food must be positive"),
    ):
        with pytest.raises(ConfigError) as told:
            config.load(config_file, [f"train.class_weights={wrong}"])
        assert words in str(told.value)


def test_a_run_is_weighted_as_it_says_and_a_typo_leaves_no_trace(
    config_file: Path, toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = tmp_path / "train.tsv"
    rows = (toy_data / "sib200" / "train-en.tsv").read_text().splitlines()
    rare = [row for row in rows if "\tweather\t" in row]
    few = [row for row in rows if row not in rare[8:]]
    train.write_text("\n".join(few) + "\n")
    common = ["task.name=files", f"task.train={train}", "train.epochs=1", "task.held_out=0.2"]
    typo = config.load(config_file, [*common, "train.class_weights={Weather = 2}"])
    with pytest.raises(UsageError, match="did you mean 'weather'"):
        trainer.train(typo, tmp_path / "typo")
    assert not (tmp_path / "typo").exists()
    balanced = config.load(config_file, [*common, "train.class_weights=balanced"])
    trainer.train(balanced, tmp_path / "run")
    # Of 80, 80 and 8 a fifth is held out: 134 rows, of which 64, 64 and 6.
    assert "class weights: food 0.698, sports 0.698, weather 7.44\n" in capsys.readouterr().err
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["stages"][0]["train"]["class_weights"] == "balanced"
    # A run of a version without the key is the same run where nothing is weighted.
    plain = config.load(config_file, common)
    (tmp_path / "run" / "run.json").write_text(
        json.dumps(trainer.stamp(plain) | {"stages": without(trainer.stamp(plain)["stages"])})
    )
    assert trainer.train(plain, tmp_path / "run")["dev_score"]


def without(stages: list[dict[str, dict[str, object]]]) -> list[dict[str, dict[str, object]]]:
    for stage in stages:
        del stage["train"]["class_weights"]
    return stages
