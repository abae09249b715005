"""The model card says what the manifest says."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from xlt_training.exporting import checkpoint as export
from xlt_training.exporting import gate
from xlt_training.exporting.card import NAME, card
from xlt_training.loop import config, trainer

from xlt_serve import bundle as bundles
from xlt_serve import load


def test_every_bundle_has_one_and_it_is_hashed(bundle: Path) -> None:
    manifest = bundles.load(bundle).manifest
    assert NAME in manifest.files
    text = (bundle / NAME).read_text()
    assert text == card(manifest)
    for language, row in manifest.scores["dev"].items():
        shown = (row["count"], f"{row['accuracy']:.3f}", f"{row['macro_f1']:.3f}")
        assert f"| {language} | {shown[0]:.0f} | {shown[1]} | {shown[2]} |" in text
    assert all(label in text for label in manifest.labels)
    assert text.startswith("---\nlibrary_name: xlt-serve\n")


def test_what_nobody_knows_is_said(bundle: Path) -> None:
    manifest = bundles.load(bundle).manifest
    bare = card(replace(manifest, scores={}, calibration={}, noise={}, method={}))
    assert "Nobody has judged it" in bare
    assert "methods: unknown" in bare
    answered = {"threshold": 0.7, "coverage": 0.25, "error": 0.125}
    told = card(
        replace(
            manifest,
            scores={
                "dev": {"en": {"accuracy": 0.6, "count": 30, "there": 2490, "answered": answered}}
            },
            calibration={"plain": {"abstain_below": 0.7}},
            checks={"trimmed": {"languages": ["en", "de"]}},
            pair=True,
        )
    )
    assert "| en | 30 of 2,490 | 0.600 |  |  | 25.0% | 12.5% |" in told
    assert "no label below a probability of 0.700" in told
    assert "Scripts that en, de don't use" in told
    assert '("a text", "another")' in told


def test_own_files_are_named_and_counted(config_file: Path, toy_data: Path, tmp_path: Path) -> None:
    rows = (toy_data / "sib200" / "train-en.tsv").read_text().splitlines()
    head, english, german = rows[0], rows[1:101], rows[101:140]
    for name, mine in (("mine.en.tsv", english), ("mine.de.tsv", german)):
        (tmp_path / name).write_text("\n".join([head, *mine]) + "\n")
    overrides = [
        "task.name=files",
        f'task.train={{en = "{tmp_path}/mine.en.tsv", de = "{tmp_path}/mine.de.tsv"}}',
        f"task.dev={toy_data}/sib200/dev-{{language}}.tsv",
        'task.supervised=["de"]',
        "train.epochs=1",
    ]
    trainer.train(config.load(config_file, overrides), tmp_path / "run")
    (tmp_path / "mine.en.tsv").unlink()  # the counts are those of the training
    manifest = export.export(tmp_path / "run", tmp_path / "made").manifest
    text = (tmp_path / "made" / NAME).read_text()
    assert "- files: mine.de.tsv, mine.en.tsv (train); dev-de.tsv, dev-en.tsv (dev)\n" in text
    assert str(tmp_path) not in text.replace(str(config_file.parent), "")
    assert "- trained on 139 rows: en 100, de 39\n" in text
    assert "Trained on labels in `en`, `de`." in text
    counted = Counter(row.split("\t")[1] for row in [*english, *german])
    shown = dict(re.findall(r"(\w+) (\d+)", text.partition("- rows of each label: ")[2]))
    assert {label: int(shown[label]) for label in counted} == counted
    for language, row in manifest.scores["dev"].items():
        assert row["macro_f1"] == pytest.approx(macro_f1(tmp_path / "made", toy_data, language))
    old = replace(manifest, checks={k: v for k, v in manifest.checks.items() if k != "trained_on"})
    assert "Trained on labels in `en`." in card(old)
    assert "- files:" not in card(old)


def macro_f1(bundle: Path, data: Path, language: str) -> float:
    """By the definition, of what the bundle answers."""
    file = data / "sib200" / f"dev-{language}.tsv"
    rows = [line.split("\t") for line in file.read_text().splitlines()[1:]]
    truth = [label for _, label, _ in rows]
    given = [answer.label for answer in load(bundle).predict([text for *_, text in rows])]
    pairs = Counter(zip(truth, given, strict=True))
    f1 = []
    for label in {*truth, *given}:
        hits = pairs[label, label]
        f1.append(2 * hits / (truth.count(str(label)) + given.count(label)))
    return sum(f1) / len(f1)


def test_many_labels_are_not_all_listed(bundle: Path) -> None:
    manifest = bundles.load(bundle).manifest
    counts = {f"label{number}": 50 - number for number in range(33)}
    text = card(replace(manifest, checks={"trained_on": {"labels": counts}}))
    assert "- rows of each label: label0 50, " in text
    assert "label19 31, and 13 more\n" in text


def test_a_label_that_the_model_does_not_know_counts_as_one() -> None:
    """a: F1 2/3, b: 1, c: unknown, 0."""
    assert gate.macro_f1(["a", "c", "b"], np.array([0, 0, 1]), ["a", "b"]) == pytest.approx(5 / 9)
