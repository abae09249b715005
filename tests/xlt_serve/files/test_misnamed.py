"""A file that is something else than its name says is told in one line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from xlt_serve.errors import DataError
from xlt_serve.files.codecs import told_by
from xlt_serve.files.places import Source, refuse_misnamed

PLAIN = b"id,text\n1,a goal\n"


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": ["a"]}), sink)
    return sink.getvalue()


def zipped() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("i.csv", PLAIN)
    return sink.getvalue()


CONTENT = {
    "text": PLAIN,
    "gzip": gzip.compress(PLAIN),
    "bz2": bz2.compress(PLAIN),
    "xz": lzma.compress(PLAIN),
    "zstd": pa.Codec("zstd").compress(PLAIN, asbytes=True),
    "parquet": parquet(),
    "zip": zipped(),
}


def source(file: Path) -> Source:
    format, codec = told_by(file.name)
    assert format is not None
    return Source(str(file), file.name, format, codec)


@pytest.mark.parametrize(
    ("name", "holds", "says"),
    [
        ("i.csv", "gzip", r"is called csv, and holds gzip; rename it, to i\.csv\.gz"),
        ("i.jsonl", "zstd", r"is called jsonl, and holds zstd; rename it, to i\.jsonl\.zst"),
        ("i.csv.gz", "text", r"is not gzip, and holds uncompressed text; rename it without \.gz"),
        ("i.csv.gz", "bz2", r"is not gzip, and holds bz2; rename it, to i\.csv\.bz2"),
        ("i.tsv", "zip", r"is called tsv, and holds zip; unpack it"),
        ("i.csv", "parquet", r"is called csv, and holds parquet; rename it, to i\.parquet"),
        ("i.parquet", "xz", r"is not parquet, and holds xz; rename it, to i\.xz"),
    ],
)
def test_it_is_told_in_one_line(tmp_path: Path, name: str, holds: str, says: str) -> None:
    file = tmp_path / name
    file.write_bytes(CONTENT[holds])
    with pytest.raises(DataError, match=says) as caught:
        refuse_misnamed(source(file))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("i.csv", "text"),
        ("i.csv.gz", "gzip"),
        ("i.csv.bz2", "bz2"),
        ("i.csv.xz", "xz"),
        ("i.csv.zst", "zstd"),
        ("i.parquet", "parquet"),
    ],
)
def test_what_is_named_right_passes(tmp_path: Path, name: str, holds: str) -> None:
    file = tmp_path / name
    file.write_bytes(CONTENT[holds])
    refuse_misnamed(source(file))
    file.write_bytes(b"")
    refuse_misnamed(source(file))
