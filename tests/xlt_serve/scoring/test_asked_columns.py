"""Columns are looked for in every file before the first row, and chosen for the output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.xlt_serve.scoring.fakes import opening
from tests.xlt_serve.scoring.test_formats import ROWS, read, write
from xlt_serve.errors import DataError, UsageError
from xlt_serve.scoring import Order, score

GOOD = [{"id": "1", "text": "a goal"}, {"id": "2", "text": "bread"}]


def refused(order: Order, says: str, kind: type[Exception] = UsageError) -> None:
    with pytest.raises(kind, match=says):
        score(order, open_predictor=opening())
    out = Path(order.out.rstrip("/"))
    assert not out.exists()
    assert not out.with_name(out.name + ".partial").exists()


@pytest.mark.parametrize("out", ["o.csv", "o.parquet", "o/"])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_later_file_without_the_column_is_refused_at_once(
    bundle: Path, tmp_path: Path, out: str, ending: str
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    write(source / f"1.{ending}", GOOD)
    write(source / f"2.{ending}", [{"id": "3", "body": "x"}])
    order = Order(str(source), str(tmp_path) + f"/{out}", str(bundle))
    refused(order, rf"--text text: is no column of .*2\.{ending}; it has id, body")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_later_file_with_a_column_of_ours_is_refused_at_once(
    bundle: Path, tmp_path: Path, ending: str
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    write(source / f"1.{ending}", GOOD)
    write(source / f"2.{ending}", [row | {"xlt_label": "old"} for row in GOOD])
    order = Order(str(source), str(tmp_path / "o") + "/", str(bundle))
    refused(order, rf"xlt_label: is in the input already .*2\.{ending}.*--prefix")
    dropping = Order(str(source), str(tmp_path / "o") + "/", str(bundle), keep=("id",))
    assert score(dropping, open_predictor=opening()).counts.rows == 4


def typed(file: Path, kind: Any, values: list[Any]) -> Path:
    pq.write_table(pa.table({"text": pa.array(values, kind)}), file)
    return file


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (pa.binary(), [b"a goal"], "is binary in .*make it a column of strings"),
        (pa.int64(), [5], "is int64 in"),
        (pa.list_(pa.string()), [["a"]], "is list"),
        (
            pa.struct([("title", pa.string()), ("n", pa.int64())]),
            [{"title": "a", "n": 1}],
            r"is struct in .*name a field of it: text\.title",
        ),
    ],
)
def test_a_column_of_no_texts_is_refused_at_once(
    bundle: Path, tmp_path: Path, kind: Any, values: list[Any], says: str
) -> None:
    source = typed(tmp_path / "i.parquet", kind, values)
    refused(Order(str(source), str(tmp_path / "o.parquet"), str(bundle)), f"--text text: {says}")


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
)
def test_all_kinds_of_strings_are_texts(bundle: Path, tmp_path: Path, kind: Any) -> None:
    source = typed(tmp_path / "i.parquet", kind, ["a goal", "bread", "a goal"])
    order = Order(str(source), str(tmp_path / "o.parquet"), str(bundle))
    assert score(order, open_predictor=opening()).counts.errors == 0


def test_objects_in_json_lines_are_refused_at_once(bundle: Path, tmp_path: Path) -> None:
    source = tmp_path / "i.jsonl"
    source.write_text(json.dumps({"text": {"en": "a goal", "de": "ein Tor"}}) + "\n")
    order = Order(str(source), str(tmp_path / "o.jsonl"), str(bundle))
    refused(order, r"holds JSON objects.*name a field of it: text\.en")


@pytest.mark.parametrize("given", ["jsonl", "parquet"])
@pytest.mark.parametrize("out", ["o.jsonl", "o.csv", "o.parquet"])
def test_fields_within_fields(bundle: Path, tmp_path: Path, given: str, out: str) -> None:
    rows = [{"id": n, "doc": {"body": {"text": f"the goal {n}"}}} for n in range(5)]
    source = tmp_path / f"i.{given}"
    if given == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), source)
    else:
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    order = Order(str(source), str(tmp_path / out), str(bundle), text="doc.body.text")
    counts = score(order, open_predictor=opening()).counts
    assert (counts.rows, counts.errors) == (5, 0)
    first = read(tmp_path / out)[0]
    doc = first["doc"] if isinstance(first["doc"], dict) else json.loads(first["doc"])
    assert doc == rows[0]["doc"]  # kept as it was
    wrong = Order(str(source), str(tmp_path / "p.jsonl"), str(bundle), text="doc.text")
    refused(wrong, "--text doc.text: is no column of")


def test_a_column_whose_name_has_a_dot_is_itself(bundle: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "i.csv", [{"doc.body": "a goal", "doc": "x"}])
    order = Order(str(source), str(tmp_path / "o.csv"), str(bundle), text="doc.body")
    assert score(order, open_predictor=opening()).counts.errors == 0


@pytest.mark.parametrize("given", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("out", ["csv", "tsv", "jsonl", "parquet"])
def test_columns_are_chosen(bundle: Path, tmp_path: Path, given: str, out: str) -> None:
    source = write(tmp_path / f"i.{given}", ROWS)
    for name, chosen in (("keep", {"keep": ("id",)}), ("drop", {"drop": ("text", "note")})):
        target = tmp_path / f"{name}.{out}"
        score(Order(str(source), str(target), str(bundle), **chosen), open_predictor=opening())
        found = read(target)
        assert [row["id"] for row in found] == [row["id"] for row in ROWS]
        assert {key for key in found[0] if not key.startswith("xlt_")} == {"id"}
        assert all(row["xlt_label"] for row in found)
    refused(Order(str(source), str(tmp_path / "x.csv"), str(bundle), drop=("nod",)), "nod: is no")
    with pytest.raises(UsageError, match="keep and drop"):
        Order(str(source), "o.csv", keep=("id",), drop=("text",))


def test_parquet_with_a_name_twice_is_refused(bundle: Path, tmp_path: Path) -> None:
    source = tmp_path / "i.parquet"
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, source)
    order = Order(str(source), str(tmp_path / "o.parquet"), str(bundle))
    refused(order, "names a column twice: text", DataError)


def test_several_inputs(bundle: Path, tmp_path: Path) -> None:
    first, second = write(tmp_path / "b.csv", ROWS[:3]), write(tmp_path / "a.csv", ROWS[3:8])
    both = (str(first), str(second))
    score(Order(both, str(tmp_path / "o.csv"), str(bundle)), open_predictor=opening())
    found = read(tmp_path / "o.csv")
    assert [row["id"] for row in found] == [row["id"] for row in ROWS[:8]]  # in the order given
    score(Order(both, str(tmp_path / "o") + "/", str(bundle)), open_predictor=opening())
    assert sorted(file.name for file in (tmp_path / "o").iterdir()) == ["a.csv", "b.csv"]
    again = (str(first), str(tmp_path / "." / "b.csv"))
    refused(Order(again, str(tmp_path / "p.csv"), str(bundle)), "is given twice")
    write(tmp_path / "c.jsonl", ROWS)
    mixed = (str(first), str(tmp_path / "c.jsonl"))
    refused(Order(mixed, str(tmp_path / "p.csv"), str(bundle)), "several formats", DataError)
    (tmp_path / "d").mkdir()
    same = (str(first), str(write(tmp_path / "d" / "b.csv", ROWS)))
    refused(Order(same, str(tmp_path / "p") + "/", str(bundle)), r"would both be written to b\.csv")
    with pytest.raises(UsageError, match="a pipe is the only input"):
        Order(("-", "a.csv"), "o.csv")


@pytest.mark.parametrize(
    "content", ['[{"text": "a"}, {"text": "b"}]', '[\n  {\n    "text": "a"\n  }\n]\n']
)
def test_a_json_array_is_told(bundle: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "i.jsonl").write_text(content)
    order = Order(str(tmp_path / "i.jsonl"), str(tmp_path / "o.jsonl"), str(bundle))
    refused(order, r"is a JSON array, not JSON lines; .*jq -c", DataError)


def test_a_byte_that_is_no_utf8_is_shown_as_it_is(bundle: Path, tmp_path: Path) -> None:
    lines = [b"text", *[b"good"] * 3, "Ólafur".encode("latin-1")]
    (tmp_path / "i.csv").write_bytes(b"\n".join(lines) + b"\n")
    order = Order(str(tmp_path / "i.csv"), str(tmp_path / "o.jsonl"), str(bundle))
    score(order, open_predictor=opening())
    last = (tmp_path / "o.jsonl").read_text().splitlines()[-1]
    assert "\\xd3" in json.loads(last)["xlt_error"]["message"]
