"""Training from Python."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from xlt_training import export, fit

from xlt_serve import load
from xlt_serve.errors import ConfigError


def test_two_calls_make_a_bundle_that_answers(
    toy_data: Path, encoders: dict[str, Path], tmp_path: Path
) -> None:
    folder = toy_data / "sib200"
    fitted = fit(
        folder / "train-en.tsv",
        tmp_path / "run",
        dev=f"{folder}/dev-{{language}}.tsv",
        encoder=str(encoders["xlm-roberta"]),
        settings={"train.epochs": 2, "train.learning_rate": 1e-3},
    )
    assert set(fitted.languages) == {"de", "en"}
    made = export(fitted, tmp_path / "bundle", precision="fp32")
    assert load(made.path).predict(["the match"])[0].label in made.manifest.labels


def test_what_is_wrong_is_told_as_in_a_config(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    with file.open("w", newline="") as sink:
        csv.writer(sink).writerows([("text", "label"), ("a", "b")])
    with pytest.raises(ConfigError, match=r"train\.epoch is not a known key.*epochs"):
        fit(str(file), tmp_path / "run", settings={"train.epoch": 3})
    with pytest.raises(ConfigError, match="vanila"):
        fit(str(file), tmp_path / "run", methods="vanila")
