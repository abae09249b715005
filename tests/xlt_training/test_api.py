"""Training from Python."""

from __future__ import annotations

import csv
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from xlt_training import export, fit
from xlt_training.exporting.checkpoint import PRECISIONS
from xlt_training.exporting.order import Order, OrderKeywords

from xlt_serve import load
from xlt_serve.errors import ConfigError, UsageError


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


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"precison": "int8"}, "precison=: is no option of export; did you mean 'precision'?"),
        ({"quant": True}, "quant=: is no option of export; it has: name, precision, "),
        ({"precision": "int4"}, "precision='int4': must be one of fp32"),
    ],
)
def test_an_option_that_export_lacks_is_told(
    checkpoint: Path, tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        export(checkpoint, tmp_path / "bundle", **given)
    assert str(caught.value).startswith(says)
    assert not (tmp_path / "bundle").exists()


def test_the_keywords_of_export_are_the_fields_of_an_order() -> None:
    keywords = get_type_hints(OrderKeywords)
    assert list(keywords) == [each.name for each in fields(Order)]
    assert {*get_args(keywords.pop("precision"))} == {*PRECISIONS, "auto"}
    real = get_type_hints(Order)
    assert keywords == {name: real[name] for name in keywords}
