"""The recipe for Spark, on frames, and on Spark itself where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest

from tests.conftest import ROOT
from xlt_serve import load
from xlt_serve.modes.smoothed import Smoothing
from xlt_serve.scoring import spark

TEXTS = ["Das Spiel endete unentschieden.", "", None, "The vaccine protects against the disease."]


def check(found: pandas.DataFrame, bundle: Path) -> None:
    wanted = [prediction.to_dict() for prediction in load(bundle).predict(TEXTS)]
    assert list(found["id"]) == [1, 2, 3, 4]
    labels = [None if pandas.isna(label) else label for label in found["xlt_label"]]
    assert labels == [row["label"] for row in wanted]
    assert json.loads(found["xlt_error"][1])["code"] == "empty"
    assert json.loads(found["xlt_error"][2])["code"] == "not_text"
    first = json.loads(found["xlt_probabilities"][0])
    assert first == pytest.approx(wanted[0]["probabilities"], abs=2e-6)
    assert list(found["xlt_tokens"]) == [row["tokens"] for row in wanted]


def test_the_function_of_frames(bundle: Path) -> None:
    frame = pandas.DataFrame({"id": [1, 2, 3, 4], "body": TEXTS})
    score = spark.scorer(str(bundle), text="body")
    check(pandas.concat(score(iter([frame[:3], frame[3:]]))).reset_index(drop=True), bundle)


def test_votes_have_their_types_and_a_seed_that_stays(bundle: Path) -> None:
    """A task that is tried again must answer as it did, in columns that Spark can read as numbers."""
    chosen: dict[str, Any] = {"mode": "smoothed", "samples": 20, "radius": 0.05}
    frame = pandas.DataFrame({"id": [1, 2, 3], "body": ["a goal", None, "bread"]})
    score = spark.scorer(str(bundle), text="body", **chosen)
    (first,), (again,) = list(score(iter([frame]))), list(score(iter([frame])))
    pandas.testing.assert_frame_equal(first, again)
    types = {name: str(kind) for name, kind in first.dtypes.items()}
    for name in ("draws", "seed", "tokens"):
        assert types[f"xlt_{name}"] == "Int64"
    assert types["xlt_lower_bound"] == types["xlt_probability"] == "Float64"
    assert list(first["xlt_seed"].isna()) == [False, True, False]
    assert first["xlt_seed"][0] == 0
    large = spark.scorer(str(bundle), text="body", seed=2**63 - 1, **chosen)
    assert next(large(iter([frame])))["xlt_seed"][0] == 2**63 - 1  # beside a null, and whole
    smoothing = Smoothing(samples=20)
    assert spark.seeded({"mode": "smoothed", "smoothing": smoothing})["smoothing"].seed == 0
    assert spark.seeded({"mode": "plain"}) == {"mode": "plain"}

    class Field:
        name = "id"

        class dataType:
            simpleString = staticmethod(lambda: "bigint")

    class Given:
        fields = (Field,)

    ddl = spark.schema(Given, str(bundle), mode="smoothed")
    for name, kind in (("draws", "bigint"), ("seed", "bigint"), ("lower_bound", "double")):
        assert f"`xlt_{name}` {kind}" in ddl


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Spark's own
def test_map_in_pandas_on_spark_itself(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = pytest.importorskip("pyspark.sql", reason="pip install pyspark")
    if not shutil.which("java"):
        pytest.skip("Spark needs a Java runtime")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")
    session = (
        sql.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    try:
        frame = session.createDataFrame(
            list(zip([1, 2, 3, 4], TEXTS, strict=True)), "id bigint, body string"
        )
        made = frame.repartition(2).mapInPandas(
            spark.scorer(str(bundle), text="body"), schema=spark.schema(frame.schema, str(bundle))
        )
        found = made.orderBy("id").toPandas()
    finally:
        session.stop()
    check(found, bundle)
