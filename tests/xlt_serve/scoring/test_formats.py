"""Every format in, every format out, and what is wrong with a row stays in its row."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.xlt_serve.scoring.fakes import Fake, opening
from xlt_serve.errors import DataError, UsageError
from xlt_serve.files.codecs import decompressed, told_by
from xlt_serve.scoring import Order, score
from xlt_serve.scoring.input_columns import of_rows

ROWS = [
    {
        "id": str(n),
        "text": f'the goal number {n} "quoted", with, commas',
        "note": "ü\tß" if n % 2 else "",
    }
    for n in range(20)
]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    """A file of rows by the standard library alone, in the format and compression of its name."""
    kind, codec = told_by(path.name)
    names = list(rows[0])
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
        return path
    if kind == "jsonl":
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    elif kind == "tsv":
        lines = [names, *([row[n].replace("\t", " ") for n in names] for row in rows)]
        content = "".join("\t".join(line) + "\n" for line in lines)
    else:
        sink = io.StringIO(newline="")
        writer = csv.DictWriter(sink, names)
        writer.writeheader()
        writer.writerows(rows)
        content = sink.getvalue()
    tools = {None: bytes, "gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    data = content.encode()
    path.write_bytes(
        pa.Codec("zstd").compress(data, asbytes=True) if codec == "zstd" else tools[codec](data)
    )
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """The same way back: texts and JSON as their readers give them."""
    kind, codec = told_by(path.name)
    if kind == "parquet":
        return pq.read_table(path).to_pylist()
    tools = {None: bytes, "gzip": gzip.decompress, "bz2": bz2.decompress, "xz": lzma.decompress}
    data = path.read_bytes()
    data = decompressed(io.BytesIO(data), "zstd").read() if codec == "zstd" else tools[codec](data)
    if kind == "jsonl":
        return [json.loads(line) for line in data.decode().splitlines()]
    if kind == "tsv":
        names, *rest = [line.split("\t") for line in data.decode().split("\n") if line]
        return [dict(zip(names, line, strict=True)) for line in rest]
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


@pytest.mark.parametrize(
    "out", ["o.csv", "o.tsv", "o.jsonl", "o.parquet", "o.csv.gz", "o.jsonl.zst"]
)
@pytest.mark.parametrize(
    "given",
    [
        "i.csv",
        "i.tsv",
        "i.jsonl",
        "i.parquet",
        "i.csv.gz",
        "i.tsv.bz2",
        "i.jsonl.xz",
        "i.jsonl.zst",
    ],
)
def test_columns_are_kept_and_predictions_added(
    bundle: Path, tmp_path: Path, given: str, out: str
) -> None:
    order = Order(str(write(tmp_path / given, ROWS)), str(tmp_path / out), str(bundle), window=6)
    summary = score(order, open_predictor=opening())
    assert summary.counts.rows == 20
    found = read(tmp_path / out)
    assert [row["id"] for row in found] == [row["id"] for row in ROWS]
    assert [row["text"] for row in found] == [row["text"] for row in ROWS]
    tabs = given.startswith("i.tsv") or out == "o.tsv"
    notes = [row["note"].replace("\t", " ") if tabs else row["note"] for row in ROWS]
    assert [row["note"] for row in found] == notes
    for row in found:
        shares = row["xlt_probabilities"]
        shares = json.loads(shares) if isinstance(shares, str) else shares
        assert row["xlt_label"] == max(shares, key=shares.get)
        assert float(row["xlt_probability"]) == max(shares.values())
        assert row["xlt_error"] in ("", None)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([given, out, f"{out}.score.json"])


def test_the_real_model_gives_what_predict_gives(bundle: Path, tmp_path: Path) -> None:
    from xlt_serve import load

    texts = ["the goal was in our match", "", "soup with bread", "x" * 3] * 5
    file = tmp_path / "i.jsonl"
    file.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    score(Order(str(file), str(tmp_path / "o.jsonl"), str(bundle)))
    for row, want in zip(read(tmp_path / "o.jsonl"), load(bundle).predict(texts), strict=True):
        plain = want.to_dict()
        for name in plain.keys() - {"probabilities"}:
            assert row[f"xlt_{name}"] == plain[name]
        assert row["xlt_probabilities"] == pytest.approx(plain["probabilities"], abs=2e-6)


def test_no_field_of_a_prediction_is_forgotten(bundle: Path) -> None:
    from xlt_serve import load
    from xlt_serve.modes.smoothed import Smoothing
    from xlt_serve.scoring import columns

    classifier = load(bundle)
    (plain,) = classifier.predict(["goal"])
    assert plain.to_dict().keys() <= set(columns.possible("plain"))
    (smoothed,) = classifier.predict(
        ["goal"], mode="smoothed", smoothing=Smoothing(samples=20, seed=1)
    )
    assert smoothed.to_dict().keys() <= set(columns.possible("smoothed"))


def test_smoothed_scores_are_the_same_each_time(bundle: Path, tmp_path: Path) -> None:
    from xlt_serve.modes.smoothed import Smoothing

    file = write(tmp_path / "i.csv", ROWS[:3])
    chosen = {"mode": "smoothed", "smoothing": Smoothing(samples=20, radius=0.05, seed=0)}
    for out in ("a.parquet", "b.parquet"):
        score(Order(str(file), str(tmp_path / out), str(bundle), settings=chosen))
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    for row in read(tmp_path / "a.parquet"):
        assert sum(row["xlt_votes"].values()) == row["xlt_draws"]
        assert row["xlt_mode"] == "smoothed"


def test_pairs(pair_bundle: Path, tmp_path: Path) -> None:
    rows = [{"a": "the goal", "b": "a match"}, {"a": "the goal", "b": ""}]
    file = write(tmp_path / "i.csv", rows)
    with pytest.raises(UsageError, match="--text A --pair B"):
        score(Order(str(file), str(tmp_path / "o.csv"), str(pair_bundle), text="a"))
    score(Order(str(file), str(tmp_path / "o.csv"), str(pair_bundle), text="a", pair="b"))
    first, second = read(tmp_path / "o.csv")
    assert first["xlt_label"]
    assert second["xlt_error"].startswith("empty: ")


@pytest.mark.parametrize("out", ["o.csv", "o.jsonl", "o.parquet"])
def test_a_bad_row_is_a_row_with_an_error(bundle: Path, tmp_path: Path, out: str) -> None:
    file = tmp_path / "i.csv"
    lines = [
        b"id,text",
        b"1,good",
        b"2",
        b"3,too,many",
        b"4,\xff\xfe bad bytes",
        b'5,"two\nlines"',
        b"6,",
        b'7,"never closed',
        b"8,last",
    ]
    file.write_bytes(b"\n".join(lines) + b"\n")
    order = Order(str(file), str(tmp_path / out), str(bundle), max_errors="100%")  # 5 of 8 rows
    score(order, open_predictor=opening())
    found = (
        read(tmp_path / out)
        if out != "o.csv"
        else list(
            csv.DictReader(
                io.StringIO(
                    (tmp_path / out).read_bytes().decode("utf-8", "surrogateescape"), newline=""
                )
            )
        )
    )
    assert [row["id"] for row in found] == list("12345678")
    errors = [row["xlt_error"] for row in found]
    codes = [(e if isinstance(e, str) else e["code"]).split(":")[0] if e else None for e in errors]
    assert codes == [None, "row", "row", "not_text", None, "empty", "row", None]
    assert found[4]["text"] == "two\nlines"
    assert found[2]["text"] == "too,many"  # nothing of it is lost
    if out == "o.csv":
        assert b"\xff\xfe bad bytes" in (tmp_path / out).read_bytes()


def test_bad_json_lines(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "i.jsonl"
    file.write_bytes(
        b'{"text": "good", "n": 1}\n[1]\n{"text": \n\n{"n": 2}\n{"text": 5}\n{"text": null}\n'
        b'{"text": "\\ud800"}\n\xef\xbb\xbf\n' + b"[" * 100_000 + b'\n{"text": "end"}'
    )
    order = Order(str(file), str(tmp_path / "o.jsonl"), str(bundle), max_errors="8")
    summary = score(order, open_predictor=opening())
    found = read(tmp_path / "o.jsonl")
    codes = [row["xlt_error"] and row["xlt_error"]["code"] for row in found]
    assert codes == [None, "row", "row", *["not_text"] * 4, "row", "row", None]
    assert summary.counts.errors == 8
    assert found[1]["xlt_error"]["message"] == "line 2: is not a JSON object"


def test_strict_stops_at_the_first(bundle: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "i.csv", [*ROWS[:3], ROWS[3] | {"text": ""}, *ROWS[4:]])
    order = Order(str(file), str(tmp_path / "o.csv"), str(bundle), strict=True)
    with pytest.raises(DataError, match=r"row 4 of the 20 .*empty"):
        score(order, open_predictor=opening())
    assert not (tmp_path / "o.csv").exists()


def test_a_row_that_breaks_the_model_fails_alone(bundle: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "i.csv", [*ROWS[:3], ROWS[3] | {"text": "POISON"}, *ROWS[4:]])
    score(
        Order(str(file), str(tmp_path / "o.csv"), str(bundle)),
        open_predictor=opening(poison="POISON"),
    )
    found = read(tmp_path / "o.csv")
    assert [bool(row["xlt_error"]) for row in found] == [n == 3 for n in range(20)]
    assert found[3]["xlt_error"] == "failed: RuntimeError: poisoned"
    with pytest.raises(RuntimeError, match="poisoned"):  # all of them: not the rows' fault
        score(
            Order(str(file), str(tmp_path / "p.csv"), str(bundle)),
            open_predictor=opening(poison=""),
        )


def test_folders_and_globs(bundle: Path, tmp_path: Path) -> None:
    for language in ("de", "fr"):
        folder = tmp_path / "in" / f"lang={language}"
        folder.mkdir(parents=True)
        for part in range(2):
            rows = [row | {"id": f"{language}{part}{row['id']}"} for row in ROWS[:3]]
            write(folder / f"part-{part}.parquet", rows)
    (tmp_path / "in" / "_SUCCESS").touch()
    fake = opening()
    score(Order(str(tmp_path / "in"), str(tmp_path / "one.csv"), str(bundle)), open_predictor=fake)
    one = read(tmp_path / "one.csv")
    assert [row["lang"] for row in one] == ["de"] * 6 + ["fr"] * 6
    score(Order(str(tmp_path / "in"), f"{tmp_path}/many/", str(bundle)), open_predictor=fake)
    many = [
        row
        for file in sorted((tmp_path / "many").rglob("*.parquet"))
        for row in pq.ParquetFile(file).read().to_pylist()
    ]
    assert [row["id"] for row in many] == [row["id"] for row in one]
    assert pq.read_table(tmp_path / "many").column("lang").to_pylist() == ["de"] * 6 + ["fr"] * 6
    pattern = f"{tmp_path}/in/**/part-1.parquet"
    score(Order(pattern, str(tmp_path / "ones.jsonl"), str(bundle)), open_predictor=fake)
    assert [row["id"] for row in read(tmp_path / "ones.jsonl")] == [
        r["id"] for r in one if r["id"][2] == "1"
    ]
    for wrong, says in (
        (f"{tmp_path}/in/*.csv", "matches no file"),
        (str(tmp_path / "none.csv"), "is not there"),
    ):
        with pytest.raises(DataError, match=says):
            score(Order(wrong, str(tmp_path / "x.csv"), str(bundle)))


def test_parquet_keeps_its_types(bundle: Path, tmp_path: Path) -> None:
    import datetime
    from decimal import Decimal

    table = pa.table(
        {
            "text": pa.array(["a goal", None, "soup"]),
            "when": pa.array([datetime.datetime(2026, 1, 2)] * 3, pa.timestamp("us", "UTC")),
            "price": pa.array([Decimal("1.10"), None, Decimal("3.00")], pa.decimal128(9, 2)),
            "tags": pa.array([["x"], [], None], pa.list_(pa.string())),
            "kind": pa.array(["u", "v", "u"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "i.parquet")
    score(
        Order(str(tmp_path / "i.parquet"), str(tmp_path / "o.parquet"), str(bundle), window=2),
        open_predictor=opening(),
    )
    found = pq.read_table(tmp_path / "o.parquet")
    assert found.select(table.column_names).equals(table)
    assert found.column("xlt_error").to_pylist()[1]["code"] == "not_text"
    score(
        Order(str(tmp_path / "i.parquet"), str(tmp_path / "o.jsonl"), str(bundle)),
        open_predictor=opening(),
    )
    first = read(tmp_path / "o.jsonl")[0]
    assert (first["when"], first["price"], first["tags"]) == (
        "2026-01-02T00:00:00+00:00",
        "1.10",
        ["x"],
    )


def test_json_types_are_told_by_all_rows(bundle: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": "a", "n": 1, "f": 1}, {"text": "b", "n": None, "f": 2.5}]
    rows += [
        {"text": "c", "m": True, "deep": {"x": [1]}, "mixed": 1},
        {"text": "d", "late": "x", "mixed": "s"},
    ]
    file = tmp_path / "i.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    score(
        Order(str(file), str(tmp_path / "o.parquet"), str(bundle), window=2),
        open_predictor=opening(),
    )
    found = pq.read_table(tmp_path / "o.parquet")
    types = {
        name: str(found.schema.field(name).type)
        for name in ("n", "f", "m", "deep", "late", "mixed")
    }
    assert types == {
        "n": "int64",
        "f": "double",
        "m": "bool",
        "deep": "string",
        "late": "string",
        "mixed": "string",
    }
    assert found.column("deep").to_pylist() == [None, None, '{"x": [1]}', None]
    assert of_rows([{"a": 2**70}]).kinds == {"a": "json"}


def test_object_stores_through_fsspec(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    for part in (1, 2):
        write(tmp_path / f"{part}.csv", [row | {"id": f"{part}-{row['id']}"} for row in ROWS])
        memory.pipe_file(f"/shop/in/{part}.csv", (tmp_path / f"{part}.csv").read_bytes())
    fake = opening()
    score(
        Order("memory://shop/in/*.csv", "memory://shop/out.parquet", str(bundle)),
        open_predictor=fake,
    )
    with memory.open("/shop/out.parquet") as stream:
        found = pq.read_table(stream)
    assert found.column("id").to_pylist() == [f"{p}-{row['id']}" for p in (1, 2) for row in ROWS]
    again = score(
        Order("memory://shop/in/*.csv", "memory://shop/out.parquet", str(bundle)),
        open_predictor=fake,
    )
    assert (again.said, again.counts.rows) == ("", 40)
    score(Order("memory://shop/in", "memory://shop/many/", str(bundle)), open_predictor=fake)
    assert sorted(memory.ls("/shop/many", detail=False)) == ["/shop/many/1.csv", "/shop/many/2.csv"]
    address = f"file://{tmp_path}/1.csv"
    score(Order(address, f"file://{tmp_path}/there.csv", str(bundle)), open_predictor=fake)
    score(
        Order(str(tmp_path / "1.csv"), str(tmp_path / "here.csv"), str(bundle)), open_predictor=fake
    )
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()
    assert not list((tmp_path / "cache" / "xlt-serve" / "score").iterdir())
    with pytest.raises((UsageError, DataError)):
        score(Order("nosuch://x/y.csv", str(tmp_path / "x.csv"), str(bundle)))


def test_damaged_compression(bundle: Path, tmp_path: Path) -> None:
    for name in ("i.csv.gz", "i.csv.bz2", "i.csv.xz", "i.csv.zst"):
        file = write(tmp_path / name, ROWS * 40)
        file.write_bytes(file.read_bytes()[:-30])
        with pytest.raises(DataError, match="damaged or cut off"):
            score(
                Order(str(file), str(tmp_path / f"o-{name}"), str(bundle)), open_predictor=opening()
            )
    (tmp_path / "i.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="is not Parquet"):
        score(Order(str(tmp_path / "i.parquet"), str(tmp_path / "o.csv"), str(bundle)))


def test_how_the_input_is_written_may_be_said(bundle: Path, tmp_path: Path) -> None:
    """The same answers as for the same rows in UTF-8 with commas, also over several windows."""
    texts = [f"the goal number {n}, größer" for n in range(12)]
    plain = tmp_path / "plain.csv"
    plain.write_text("".join(f"{line}\n" for line in ["text", *(f'"{t}"' for t in texts)]))
    old = tmp_path / "old.csv"
    lines = ["n;text", *(f"{n};{text}" for n, text in enumerate(texts))]
    old.write_bytes("\n".join(lines).encode("cp1252"))
    score(Order(str(plain), str(tmp_path / "a.csv"), str(bundle)), quiet=True)
    said = {"encoding": "cp1252", "delimiter": ";", "window": 5}
    score(Order(str(old), str(tmp_path / "b.csv"), str(bundle), text="text", **said), quiet=True)  # type: ignore[arg-type]
    one, other = read(tmp_path / "a.csv"), read(tmp_path / "b.csv")
    assert [row["text"] for row in other] == texts
    assert [row["xlt_probabilities"] for row in one] == [row["xlt_probabilities"] for row in other]


def test_wrong_calls(bundle: Path, tmp_path: Path) -> None:
    file = str(write(tmp_path / "i.csv", [{"a": "x", "b": "y", "xlt_label": "z"}]))
    for order, says in (
        (
            lambda: Order(file, str(tmp_path / "o.csv"), str(bundle)),
            "--text text: is no column of .*a, b",
        ),
        (
            lambda: Order(file, str(tmp_path / "o.csv"), str(bundle), text="a"),
            "give another --prefix",
        ),
        (
            lambda: Order(file, str(tmp_path / "o.xls"), str(bundle), text="a", prefix="p_"),
            "no known ending",
        ),
        (
            lambda: Order(file, str(tmp_path / "o.csv"), str(bundle), text="a", pair="b"),
            "single texts",
        ),
        (lambda: Order("-", "-", str(bundle), in_format="parquet"), "can't be read from a pipe"),
        (
            lambda: Order(file, "-", str(bundle), text="a", prefix="p_", out_format="parquet"),
            "can't be written",
        ),
        (lambda: Order(file, file, str(bundle), text="a", prefix="p_"), "is the input itself"),
        (lambda: Order(str(tmp_path), str(tmp_path / "o.csv"), str(bundle)), "within the input"),
        (lambda: Order(file, "x", engine="spark"), "must be one of local, ray"),
        (lambda: Order(file, "-", str(bundle), delimiter=";;"), "must be one character"),
        (lambda: Order(file, "-", str(bundle), encoding="utf-9"), "is no encoding"),
    ):
        with pytest.raises(UsageError, match=says):
            score(order())
    (tmp_path / "empty.csv").touch()
    with pytest.raises(DataError, match="is empty"):
        score(Order(str(tmp_path / "empty.csv"), str(tmp_path / "o.csv"), str(bundle)))


def test_an_input_without_rows_gives_a_header(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "i.csv").write_text("id,text\n")
    for out in ("o.csv", "o.parquet", "o.jsonl"):
        score(
            Order(str(tmp_path / "i.csv"), str(tmp_path / out), str(bundle)),
            open_predictor=opening(),
        )
    assert (tmp_path / "o.csv").read_text().startswith("id,text,xlt_label,")
    assert pq.read_table(tmp_path / "o.parquet").num_rows == 0
    assert (tmp_path / "o.jsonl").read_bytes() == b""


def test_batches_do_not_depend_on_the_number_of_workers(bundle: Path, tmp_path: Path) -> None:
    rows = [{"text": "w " * (n * 7 % 50 + 1)} for n in range(300)]
    file = write(tmp_path / "i.csv", rows)
    made: list[Fake] = []

    def remember(found: Any, order: Order) -> Fake:
        made.append(Fake(found.manifest.labels))
        return made[-1]

    for workers in (1, 5):
        out = str(tmp_path / f"{workers}.csv")
        score(
            Order(str(file), out, str(bundle), workers=workers, window=90), open_predictor=remember
        )
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "5.csv").read_bytes()
    assert sorted(map(repr, made[0].batches)) == sorted(map(repr, made[1].batches))
