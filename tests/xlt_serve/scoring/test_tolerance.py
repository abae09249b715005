"""A file full of errors is no success."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.xlt_serve.scoring.fakes import opening
from tests.xlt_serve.scoring.test_formats import read, write
from xlt_serve.cli.main import main
from xlt_serve.errors import DataError, UsageError
from xlt_serve.files.window import MOST_ROWS
from xlt_serve.scoring import Order, score
from xlt_serve.scoring.counts import Counts, count, details
from xlt_serve.scoring.tolerance import Tolerance, parsed


def texts(good: int, bad: int) -> list[dict[str, str]]:
    return [{"text": f"the goal {n}"} for n in range(good)] + [{"text": ""}] * bad


def test_what_is_allowed() -> None:
    assert parsed(None) == Tolerance()
    assert parsed("7") == Tolerance(rows=7)
    assert parsed("2.5%") == Tolerance(share=0.025)
    for wrong in ("", "-1", "many", "101%", "5 %x", "1.5", "nan%"):
        with pytest.raises(UsageError, match="max_errors="):
            parsed(wrong)


@given(rows=st.integers(0, 9000), errors=st.integers(0, 9000), limit=st.integers(0, 9000))
def test_the_three_rules(rows: int, errors: int, limit: int) -> None:
    errors = min(rows, errors)
    done = Counts(rows=rows, errors=errors)
    for first in (True, False):
        assert Tolerance(rows=limit).holds(done, first, False) == (errors <= limit)
    assert Tolerance().holds(done, True, False) == (errors <= rows / 2)
    assert Tolerance().holds(done, False, True)
    share = limit / 9000
    assert Tolerance(share=share).holds(done, False, True) == (errors <= share * rows)
    if rows < MOST_ROWS:  # too few to judge a share by
        assert Tolerance(share=share).holds(done, True, False)


@pytest.mark.parametrize("out", ["o.csv", "o.parquet", "o/"])
def test_mostly_errors_at_the_beginning_are_the_end(bundle: Path, tmp_path: Path, out: str) -> None:
    write(tmp_path / "i.csv", [*texts(0, 11), *texts(9, 0), *texts(500, 0)])
    order = Order(str(tmp_path / "i.csv"), f"{tmp_path}/{out}", str(bundle), window=20)
    says = r"11 of the first 20 rows: have errors \(empty 11\), as empty: .*--max-errors"
    with pytest.raises(DataError, match=says):
        score(order, open_predictor=opening())
    assert [file.name for file in tmp_path.iterdir()] == ["i.csv"]
    another = Order(str(tmp_path / "i.csv"), order.out, str(bundle), window=20, max_errors="100%")
    assert score(another, open_predictor=opening()).counts.kinds == {"empty": 11}


def test_later_errors_stop_nobody_by_default(bundle: Path, tmp_path: Path) -> None:
    write(tmp_path / "i.csv", texts(20, 200))
    order = Order(str(tmp_path / "i.csv"), str(tmp_path / "o.csv"), str(bundle), window=20)
    assert score(order, open_predictor=opening()).counts.errors == 200


@pytest.mark.parametrize("limit", ["5", "4%"])
def test_a_limit_holds_for_the_whole_run(bundle: Path, tmp_path: Path, limit: str) -> None:
    write(tmp_path / "i.csv", texts(120, 6))
    out = tmp_path / "o.jsonl"
    order: dict[str, Any] = {"bundle": str(bundle), "window": 20}
    with pytest.raises(DataError, match=f"6 of .*--max-errors {limit} allows fewer"):
        score(
            Order(str(tmp_path / "i.csv"), str(out), max_errors=limit, **order),
            open_predictor=opening(),
        )
    assert not out.exists()
    more = Order(str(tmp_path / "i.csv"), str(out), max_errors="5%", **order)
    assert score(more, open_predictor=opening()).counts.rows == 126  # goes on
    assert len(read(out)) == 126


def test_the_receipt_says_what_went_wrong(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "i.jsonl").write_text('{"text": "a"}\n{"text": 5}\n{\n{"text": "b"}\n')
    score(
        Order(str(tmp_path / "i.jsonl"), str(tmp_path / "o.jsonl"), str(bundle)),
        open_predictor=opening(),
    )
    counts = json.loads((tmp_path / "o.jsonl.score.json").read_text())["counts"]
    assert counts["kinds"] == {"not_text": 1, "row": 1}
    assert counts["errors"] == 2


def test_a_language_is_a_code() -> None:
    for good in ("de", "tlh", "zh-Hans", "pt_BR", ("de", "en"), None):
        assert Order("i.csv", "o.csv", settings={"language": good})
    for wrong in ("klingon", "d", "de DE", ("de", "German")):
        with pytest.raises(UsageError, match="is no code of a language"):
            Order("i.csv", "o.csv", settings={"language": wrong})


def test_an_older_receipt_is_read() -> None:
    old = {"rows": 3, "errors": 1, "abstained": 0, "truncated": 0, "tokens": 9, "languages": {}}
    assert Counts.of(old).rows == 3
    assert Counts.of(old).kinds == {}


def test_translations_that_fell_back_are_counted(bundle: Path, tmp_path: Path) -> None:
    del bundle
    row = {"error": None, "language": "es", "reason": {"code": "no_translator", "message": "m"}}
    as_text = {"error": "", "language": "es", "reason": "timeout: m", "tokens": "3"}
    found = count([row, as_text, row | {"reason": None}])
    assert found.fell_back == {"no_translator": 1, "timeout": 1}
    assert details(found) == ["2 without translation: no_translator 1 timeout 1"]


@pytest.mark.parametrize("name", ["i.csv", "i.jsonl"])
def test_the_command_ends_with_1_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write(tmp_path / name, texts(1, 5))
    call = ["score", str(tmp_path / name), str(tmp_path / "o.csv")]
    assert main(call) == 1
    said = capsys.readouterr().err
    assert "5 of the first 6 rows" in said
    assert len(said.strip().splitlines()) == 1
    assert main([*call, "--max-errors", "5"]) == 0
    assert "errors: empty 5" in capsys.readouterr().err
    assert main([*call, "--max-errors", "x"]) == 2
