"""What a row of Parquet holds, against the lengths of the values themselves; windows bounded by it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.files import formats, parquet
from xlt_serve.files.places import Source
from xlt_serve.files.weights import of_array, of_batch
from xlt_serve.files.window import MOST_BYTES

TEXTS = st.one_of(st.none(), st.text(max_size=6))
BYTES = st.binary(max_size=6)


def length(value: Any) -> int:
    """The bytes of the texts in a value, and 8 for each number."""
    if value is None:
        return 0
    if isinstance(value, int):
        return 8
    if isinstance(value, dict):
        return sum(map(length, value.values()))
    if isinstance(value, tuple | list):
        return sum(map(length, value))
    return len(value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), TEXTS),
        (pa.large_string(), TEXTS),
        (pa.binary(), st.one_of(st.none(), BYTES)),
        (pa.list_(pa.string()), st.lists(TEXTS, max_size=3)),
        (pa.large_list(pa.binary()), st.one_of(st.none(), st.lists(BYTES, max_size=3))),
        (pa.list_(pa.list_(pa.string())), st.lists(st.lists(TEXTS, max_size=3), max_size=3)),
        (pa.struct([("a", pa.string()), ("b", pa.int64())]),
         st.fixed_dictionaries({"a": TEXTS, "b": st.integers(0, 9)})),
        (pa.map_(pa.string(), pa.string()),
         st.lists(st.tuples(st.text(max_size=3), TEXTS), max_size=3)),
    ],
)  # fmt: skip
def test_any_type_by_its_values(kind: Any, values: Any) -> None:
    @given(rows=st.lists(values, min_size=1, max_size=6), data=st.data())
    def check(rows: list[Any], data: st.DataObject) -> None:
        begin = data.draw(st.integers(0, len(rows)))
        array = pa.array(rows, kind)
        assert of_array(array).tolist() == [length(row) for row in rows]
        assert of_array(array[begin:]).tolist() == [length(row) for row in rows[begin:]]

    check()


def test_a_dictionary_weighs_what_its_values_do() -> None:
    array = pa.array(["aaaa", "b", None, "aaaa"]).dictionary_encode()
    assert of_array(array).tolist() == [4, 1, 0, 4]


def test_every_row_weighs_something() -> None:
    batch = pa.record_batch({"n": pa.nulls(3)})
    assert (of_batch(batch) > 0).all()


@pytest.mark.parametrize("kind", [pa.binary(), pa.list_(pa.binary())])
def test_windows_are_bounded_by_any_column(tmp_path: Path, kind: Any) -> None:
    """300 rows with 300 kB beside a short text: 90 MB, of which never much is held."""
    row = bytes(300_000) if kind == pa.binary() else [bytes(100_000)] * 3
    file = tmp_path / "i.parquet"
    schema = pa.schema([("text", pa.string()), ("raw", kind)])
    with pq.ParquetWriter(file, schema, use_dictionary=False) as writer:
        for start in range(0, 300, 50):
            rows = [{"text": str(n), "raw": row} for n in range(start, start + 50)]
            writer.write_table(pa.Table.from_pylist(rows, schema), row_group_size=50)
    seen = []
    tracemalloc.start()
    for window in formats.read(Source(str(file), file.name, "parquet")):
        assert window.size <= MOST_BYTES + 400_000
        assert pa.total_allocated_bytes() < 12 * MOST_BYTES
        seen += [r["text"] for r in window.rows]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen == [str(n) for n in range(300)]
    assert most < 6 * MOST_BYTES


def test_large_rows_are_decoded_a_few_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "i.parquet"
    pq.write_table(pa.table({"text": [str(n) * 400_000 for n in range(9)]}), file)
    assert parquet._piece(pq.ParquetFile(file)) <= MOST_BYTES // 400_000
    pq.write_table(pa.table({"text": ["a"] * 9}), file)
    assert parquet._piece(pq.ParquetFile(file)) == parquet.PIECE
