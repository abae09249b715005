"""The recipe for Spark, on frames, and on Spark itself where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pandas
import pytest

from tests.conftest import ROOT
from xlt_serve import load
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
