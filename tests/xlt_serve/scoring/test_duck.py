"""The function for DuckDB, in DuckDB itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.xlt_serve.scoring.test_formats import write
from xlt_serve import load
from xlt_serve.errors import UsageError
from xlt_serve.scoring import duck

duckdb = pytest.importorskip("duckdb", reason="pip install 'xlt-serve[duckdb]'")

TEXTS = ["Das Spiel endete unentschieden.", "", None, "The vaccine protects against the disease."]


def test_a_query_gives_what_predict_gives(bundle: Path, tmp_path: Path) -> None:
    connection = duckdb.connect()
    duck.register(connection, "classify", str(bundle))
    connection.execute("CREATE TABLE given (id INTEGER, body VARCHAR)")
    connection.executemany("INSERT INTO given VALUES (?, ?)", list(enumerate(TEXTS)))
    found = connection.sql(
        "SELECT c.label, c.probability, c.tokens, c.truncated, c.error.code, c.probabilities"
        " FROM (SELECT id, classify(body) AS c FROM given) ORDER BY id"
    ).fetchall()
    first, empty, null, last = found
    wanted = load(bundle).predict([TEXTS[0], TEXTS[3]])
    for row, want in zip((first, last), wanted, strict=True):
        assert row[0] == want.label
        assert row[1] == pytest.approx(max(want.probabilities.values()), abs=2e-6)
        assert row[2:5] == (want.tokens, False, None)
        assert row[5] == pytest.approx(want.probabilities, abs=2e-6)
    assert (empty[0], empty[4]) == (None, "empty")
    assert null == (None,) * 6  # as functions of SQL do
    file = write(tmp_path / "i.parquet", [{"body": text or "x"} for text in TEXTS])
    by_label = f"SELECT classify(body).label, count(*) FROM '{file}' GROUP BY ALL"
    assert sum(count for _, count in connection.sql(by_label).fetchall()) == 4


def test_pairs_take_two_texts(pair_bundle: Path) -> None:
    connection = duckdb.connect()
    duck.register(connection, "entails", str(pair_bundle))
    ((label,),) = connection.sql("SELECT entails('the goal', 'a match').label").fetchall()
    assert label == load(pair_bundle).predict([("the goal", "a match")])[0].label


def test_votes_are_the_same_each_time(bundle: Path) -> None:
    asked = []
    for _ in range(2):
        connection = duckdb.connect()
        duck.register(connection, "vote", str(bundle), mode="smoothed", samples=20)
        asked.append(connection.sql("SELECT vote('a goal')").fetchall())
    assert asked[0] == asked[1]
    assert asked[0][0][0]["seed"] == 0


def test_a_text_runs_once(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = load(bundle)
    answers = duck.SqlFunction(classifier, {}, most=2)
    texts = duck.arrow("tests").array(["a goal", "bread", "a goal"])
    first = answers.of_texts(texts)
    runs = []
    monkeypatch.setattr(type(classifier), "predict", lambda self, items: runs.append(items) or [])
    assert answers.of_texts(texts).equals(first)
    assert runs == [[]]


def test_what_is_no_connection_is_refused(bundle: Path) -> None:
    with pytest.raises(UsageError, match=r"str: is no connection of DuckDB"):
        duck.register("file.db", "classify", str(bundle))
