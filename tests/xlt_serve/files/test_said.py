"""Encodings and delimiters that are named: obeyed, or refused where a file shows something else."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.errors import DataError, UsageError
from xlt_serve.files.dialect import Dialect, said
from xlt_serve.files.labelled import Columns, read
from xlt_serve.files.rows import numbered_rows, source_of

SHORT = "añ;b\nß;x\n"  # too little to tell an encoding by


def rows(file: Path, encoding: str = "", delimiter: str = "") -> list[dict[str, str]]:
    bad: list[str] = []
    found = [row for _, row in numbered_rows(file, bad, said(encoding, delimiter))]
    assert not bad
    return found


@pytest.mark.parametrize(
    "encoding", ["cp1252", "latin-1", "mac_roman", "UTF8", "utf-8-sig", "utf-16"]
)
def test_what_is_said_is_read_so(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "in.csv"
    file.write_bytes(SHORT.encode(encoding))
    assert rows(file, encoding, ";") == [{"añ": "ß", "b": "x"}]


def test_one_may_be_said_and_the_other_detected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "in.csv"
    file.write_bytes("a\tb,c\n1\tä,2\n".encode("cp1252"))
    assert rows(file, "cp1252", "\\t") == [{"a": "1", "b,c": "ä,2"}]
    assert rows(file, "cp1252") == [{"a\tb": "1\tä", "c": "2"}]
    file.write_text("a§b\nx§y\n")
    assert rows(file, delimiter="§") == [{"a": "x", "b": "y"}]
    assert "read as" not in capsys.readouterr().err  # that is for what was guessed


@given(st.sampled_from(",;|\t:^~§"), st.lists(st.text('ab ",;|', min_size=1), min_size=1))
def test_any_character_may_stand_between_fields(
    tmp_path_factory: pytest.TempPathFactory, delimiter: str, texts: list[str]
) -> None:
    file = tmp_path_factory.mktemp("d") / "in.csv"
    quoted = ['"' + text.replace('"', '""') + '"' for text in texts]
    lines = [f"text{delimiter}label", *(f"{text}{delimiter}x" for text in quoted)]
    file.write_text("\n".join(lines) + "\n")
    assert [row["text"] for row in rows(file, delimiter=delimiter)] == texts


def test_what_the_file_contradicts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    cases = [
        ("größer, schön, süß, ähnlich\n".encode(), "cp1252", "", "is valid UTF-8, not cp1252"),
        ("größer\n".encode("cp1252"), "ascii", "", "is not valid ascii"),
        ("a,b\n".encode("utf-16"), "utf-8", "", "begins with the mark of utf-16, not utf-8"),
        (b"a,b\n1,2\n", "", ";", "has no ';' in its first line: 'a,b'; name another"),
    ]
    for content, encoding, delimiter, words in cases:
        file.write_bytes(content)
        with pytest.raises(DataError) as told:
            rows(file, encoding, delimiter)
        assert words in str(told.value)
        assert str(told.value).startswith(f"{file}: ")
        assert "it is detected" in str(told.value)


def test_what_is_no_encoding_or_delimiter_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text("a,b\n1,2\n")
    for encoding, delimiter, words in (
        ("utf-9", "", "encoding 'utf-9': is no encoding that Python knows; name one, as utf-8"),
        ("base64", "", "encoding 'base64': is no encoding"),
        ("", ";;", "delimiter ';;': must be one character"),
        ("", '"', "must be one character, neither a quote nor a line's end"),
    ):
        with pytest.raises(UsageError) as told:
            source_of(file, said(encoding, delimiter))
        assert words in str(told.value)
    lines = tmp_path / "in.jsonl"
    lines.write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match=r"delimiter ';': .*is jsonl: only CSV has one to choose"):
        source_of(lines, Dialect(delimiter=";"))
    pq.write_table(pa.table({"a": ["b"]}), tmp_path / "in.parquet")
    with pytest.raises(UsageError, match="is Parquet, always UTF-8; leave it out"):
        source_of(tmp_path / "in.parquet", Dialect("cp1252"))
    tsv = tmp_path / "in.tsv"
    tsv.write_text("a\tb\n")
    assert source_of(tsv, said("", "\\t")).format == "tsv"


def test_labelled_rows_of_several_files_are_all_read_so(tmp_path: Path) -> None:
    for language, text in (("de", "schön"), ("fr", "déjà")):
        (tmp_path / f"dev-{language}.csv").write_bytes(f"text:label\n{text}:x\n".encode("cp1252"))
    found = read(str(tmp_path), Columns(), "en", [], given=Dialect("cp1252", ":"))
    assert [(row.language, row.text) for row in found] == [("de", "schön"), ("fr", "déjà")]
