"""Reading text files in windows, from any position on."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlt_serve.files import text_files as text
from xlt_serve.files.codecs import compress, decompressed
from xlt_serve.files.places import Source
from xlt_serve.files.window import BEGIN, Position

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(texts, min_size=2, max_size=2), max_size=12), st.integers(1, 5), st.booleans()
)
def test_csv_is_read_as_the_standard_library_reads_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], window: int, unix: bool
) -> None:
    """Any text in quotes comes back, window by window and from every window's position on."""
    rows = [row for row in rows if any("\0" not in v for v in row) and "\0" not in "".join(row)]
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, quoting=csv.QUOTE_ALL, lineterminator="\n" if unix else "\r\n")
    writer.writerows([["a", "b"], *rows])
    file = tmp_path_factory.mktemp("csv") / "i.csv"
    file.write_bytes(sink.getvalue().encode())
    source = Source(str(file), "i.csv", "csv")
    whole = list(text.windows(source, most_rows=window))
    assert [list(row.values()) for part in whole for row in part.rows] == rows
    assert not any(part.bad for part in whole)
    for number, part in enumerate(whole):
        rest = [row for later in whole[number + 1 :] for row in later.rows]
        again = [row for w in text.windows(source, part.end, most_rows=window) for row in w.rows]
        assert again == rest


@pytest.mark.parametrize("codec", [None, "gzip", "bz2", "xz", "zstd"])
def test_compressed_windows_in_a_row_are_one_file(codec: str | None) -> None:
    parts = [b"one\n", b"", b"two\n" * 1000]
    data = b"".join(compress(part, codec) for part in parts)
    assert data == b"".join(compress(part, codec) for part in parts)
    stream = decompressed(io.BytesIO(data), codec)
    assert list(iter(stream.readline, b"")) == [b"one\n", *[b"two\n"] * 1000]


def test_lines_that_are_too_long_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "MOST_LINE", 50)
    file = tmp_path / "i.txt"
    file.write_bytes(b"one\n" + b"x" * 500 + b"\ntwo\n")
    (window,) = text.windows(Source(str(file), "i.txt", "txt"))
    assert [row["text"] for row in window.rows] == ["one", "", "two"]
    assert "more than 50 bytes" in window.bad[1][1]
    assert window.end == Position(file.stat().st_size, 3)


def test_a_line_that_is_too_long_behind_an_open_quote_costs_no_other_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "MOST_LINE", 50)
    monkeypatch.setattr(text, "MOST_RECORD", 20)
    for long in (b"2," + b"x" * 500, b'",2' + b"x" * 500):  # one closes the quote before it is cut
        file = tmp_path / "i.csv"
        file.write_bytes(b'id,text\n0,first\n1,"open\n' + long + b"\n3,third\n4,fourth\n")
        source = Source(str(file), "i.csv", "csv")
        (window,) = text.windows(source)
        assert [row["id"] for row in window.rows] == ["0", "1", "", "3", "4"]
        assert {row: problem[1] for row, problem in window.bad.items()} == {
            1: "line 3: a quote is opened and never closed",
            2: "a line of more than 50 bytes was left out",
        }
        assert window.end == Position(file.stat().st_size, 6)
        parts = list(text.windows(source, most_rows=1))
        for number, part in enumerate(parts):  # each position is where the next row begins
            again = [row for w in text.windows(source, part.end) for row in w.rows]
            assert again == window.rows[number + 1 :]


def test_only_empty_lines_of_csv_are_no_rows(tmp_path: Path) -> None:
    file = tmp_path / "i.csv"
    file.write_bytes(b"text\none\n\n  \n\r\n\t\r\ntwo\n\n")
    (window,) = text.windows(Source(str(file), "i.csv", "csv"))
    assert [row["text"] for row in window.rows] == ["one", "  ", "\t", "two"]
    assert not window.bad
    wanted = csv.DictReader(io.StringIO(file.read_bytes().decode(), newline=""))
    assert window.rows == list(wanted)


def test_windows_end_by_size_too(tmp_path: Path) -> None:
    file = tmp_path / "i.jsonl"
    file.write_text('{"text": "0123456789"}\n' * 10)
    parts = list(text.windows(Source(str(file), "i.jsonl", "jsonl"), BEGIN, 100, 60))
    assert [len(part.rows) for part in parts] == [3, 3, 3, 1]
    assert parts[-1].progress == 1
