"""Encodings and delimiters, told by what a file begins with."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlt_serve.errors import DataError
from xlt_serve.files import dialect
from xlt_serve.files import text_files as text
from xlt_serve.files.places import Source
from xlt_serve.files.rows import source_of

SENTENCES = {
    "cp1252": "Die Lieferung war schön verpackt, aber für mich leider zu spät gekommen.",
    "cp1250": "Przesyłka dotarła późno, a książka była źle zapakowana i uszkodzona.",
    "cp1251": "Посылка пришла вовремя, но одна из книг оказалась повреждённой.",
    "cp1253": "Το δέμα έφτασε στην ώρα του, αλλά το βιβλίο ήταν κατεστραμμένο.",
    "cp1254": "Kargo zamanında geldi ama kitabın kapağı yırtılmıştı, değişim istiyorum.",
    "cp1256": "وصلت الشحنة في الموعد لكن الكتاب كان تالفا وأريد استبداله من فضلكم.",
    "cp874": "พัสดุมาถึงตรงเวลา แต่หนังสือชำรุดและต้องการเปลี่ยนเล่มใหม่",
    "gb18030": "包裹按时送到了,但是书的封面已经破损,我想换一本新的。",
    "shift_jis": "荷物は時間どおりに届きましたが、本の表紙が破れていました。",
    "cp949": "택배는 제시간에 도착했지만 책 표지가 찢어져 있어서 교환하고 싶습니다.",
}


@pytest.mark.parametrize("encoding", [*SENTENCES, "utf-8", "utf-16", "utf-16-le", "utf-32"])
def test_files_in_old_encodings_are_read_as_what_they_say(tmp_path: Path, encoding: str) -> None:
    sentence = SENTENCES.get(encoding, SENTENCES["cp1251"])
    file = tmp_path / "i.csv"
    file.write_bytes(f"text;label\n{sentence};a\n{sentence};b\n".encode(encoding))
    source = dialect.sniffed(Source(str(file), "i.csv", "csv"))
    assert source.delimiter == ";"
    (window,) = text.windows(source)
    assert [row["text"] for row in window.rows] == [sentence] * 2
    assert not window.bad


def test_a_few_bad_bytes_make_no_other_encoding() -> None:
    good = "Größe schön, Käse süß\n".encode()
    assert dialect.encoding_of(good * 3 + "Größe schön\n".encode("cp1252")) == "utf-8"
    assert dialect.encoding_of(b"text,label\n\xff\x9d\x81\x8d,a\n") == "utf-8"
    assert dialect.encoding_of(b"plain\n") == "utf-8"


@pytest.mark.parametrize("encoding", ["koi8_r", "iso8859_5", "cp1255", "euc_jp", "iso8859_2"])
def test_no_text_is_read_as_another_that_nobody_wrote(encoding: str) -> None:
    """It is read right, or its rows say that they are no UTF-8."""
    sentences = SENTENCES | {
        "koi8_r": SENTENCES["cp1251"],
        "iso8859_5": SENTENCES["cp1251"],
        "cp1255": "החבילה הגיעה בזמן אבל הספר היה פגום ואני רוצה להחליף אותו",
        "euc_jp": SENTENCES["shift_jis"],
        "iso8859_2": SENTENCES["cp1250"],
    }
    sentence = sentences[encoding]
    found = dialect.encoding_of(f"text\n{sentence}\n".encode(encoding))
    assert found == "utf-8" or sentence.encode(encoding).decode(found) == sentence


def test_the_delimiter_is_found_where_the_encoding_is_not(tmp_path: Path) -> None:
    """Three languages in one old file: none of them says which encoding it is."""
    file = tmp_path / "mixed.csv"
    file.write_bytes("Text;Thema\nschön;gut\ndéjà vu;mal\n".encode("cp1252"))
    assert dialect.sniffed(source_of(file)).delimiter == ";"


def test_an_encoding_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "i.csv"
    file.write_bytes("text,label\nx,a\n".encode("utf-16-le") + b"\x00")
    source = Source(str(file), "i.csv", "csv", encoding="utf-16-le")
    with pytest.raises(DataError, match="is not valid utf-16-le"):
        list(text.windows(source))


def test_positions_go_on_in_another_encoding(tmp_path: Path) -> None:
    file = tmp_path / "i.csv"
    file.write_bytes("".join(["text\n", *(f"Größe {n}\n" for n in range(50))]).encode("cp1252"))
    source = Source(str(file), "i.csv", "csv", encoding="cp1252")
    parts = list(text.windows(source, most_rows=7))
    whole = [row["text"] for part in parts for row in part.rows]
    assert whole == [f"Größe {n}" for n in range(50)]
    rest = [row["text"] for part in text.windows(source, parts[2].end) for row in part.rows]
    assert rest == whole[21:]


fields = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(fields, min_size=3, max_size=3), min_size=3, max_size=60),
    st.sampled_from(dialect.DELIMITERS),
)
def test_the_delimiter_of_quoted_csv_is_found(rows: list[list[str]], delimiter: str) -> None:
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerows([["text", "label", "id"], *rows])
    assert dialect.delimiter_of(sink.getvalue()) == delimiter


def test_a_single_column_has_no_delimiter() -> None:
    assert dialect.delimiter_of("text\none, two\nthree; four\n") == ","
    assert dialect.delimiter_of("") == ","
