"""Rows whose text the model has no finite answer for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests import damage
from tests.damage import WORD
from xlt_serve import bundle as bundles
from xlt_serve.modes.smoothed import Smoothing
from xlt_serve.scoring import Order, score

TEXTS = ["The team won the match.", f"A {WORD} won the match.", "Rain and wind all day."]


@pytest.fixture(scope="module")
def holed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("holed") / "bundle"
    return damage.without_word(bundles.load("topics"), folder, math.nan).path


def read(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".parquet":
        return pq.read_table(file).to_pylist()  # type: ignore[no-any-return]
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("out", ["o.jsonl", "o.parquet"])
@pytest.mark.parametrize("mode", ["plain", "smoothed", "translate"])
def test_such_a_row_has_an_error_and_is_counted(
    holed: Path, tmp_path: Path, mode: str, out: str
) -> None:
    file = tmp_path / "i.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    settings: dict[str, Any] = {"mode": mode}
    if mode == "smoothed":
        settings["smoothing"] = Smoothing(40, radius=0.01, seed=1)
    done = score(Order(str(file), str(tmp_path / out), str(holed), settings=settings))
    assert (done.counts.rows, done.counts.errors) == (3, 1)
    first, second, third = read(tmp_path / out)
    assert first["xlt_error"] is third["xlt_error"] is None
    assert second["xlt_error"]["code"] == "not_finite"
    assert second["xlt_label"] is None
    assert second["xlt_probability"] is None
    if mode == "smoothed":
        assert first["xlt_draws"]
        for name in ("certificate", "votes", "draws", "lower_bound"):
            assert second[f"xlt_{name}"] is None
