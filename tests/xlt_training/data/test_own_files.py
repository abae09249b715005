"""Files of one's own: for all languages or for each, with or without dev rows."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xlt_training.data import TaskConfig, opened
from xlt_training.data.own_files import stratified
from xlt_training.loop.types import Example

from xlt_serve.errors import DataError, UsageError
from xlt_serve.files.labelled import files_of

Rows = list[tuple[str, ...]]
ENGLISH: Rows = [(f"text {number}", "ab"[number % 2]) for number in range(40)]
GERMAN: Rows = [(f"Text {number}", "ab"[number % 2]) for number in range(6)]


def write(file: Path, rows: Rows, *columns: str) -> str:
    file.parent.mkdir(exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as sink:
        csv.writer(sink).writerows([columns or ("text", "label"), *rows])
    return str(file)


def task(**given: object) -> TaskConfig:
    return TaskConfig("files", **given)  # type: ignore[arg-type]


def loaded(made: TaskConfig, split: str) -> dict[str, list[str]]:
    data = opened(made)
    return {lg: [e.text for e in data.load(split, lg)] for lg in data.languages(split)}


def test_dev_rows_of_each_language_by_table_pattern_folder_and_column(tmp_path: Path) -> None:
    """All the same rows, however they lie."""
    train = write(tmp_path / "train.csv", ENGLISH)
    english = write(tmp_path / "dev" / "dev-en.csv", ENGLISH[:4])
    german = write(tmp_path / "dev" / "dev-de.csv", GERMAN)
    marked = [(*row, "en") for row in ENGLISH[:4]] + [(*row, "de") for row in GERMAN]
    whole = write(tmp_path / "all.csv", marked, "text", "label", "lang")
    (tmp_path / "dev" / "README.md").write_text("not data")
    every = [
        task(train=train, dev={"en": english, "de": german}),
        task(train=train, dev=f"{tmp_path}/dev/dev-{{language}}.csv"),
        task(train=train, dev=str(tmp_path / "dev")),
        task(train=whole, dev=whole, language="lang"),
    ]
    wanted = {"de": [text for text, _ in GERMAN], "en": [text for text, _ in ENGLISH[:4]]}
    assert [loaded(made, "dev") for made in every] == [wanted] * 4


def test_without_dev_rows_a_share_is_held_out(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", ENGLISH)
    for made in (
        task(train=train),
        task(train=train, dev={"de": write(tmp_path / "d.csv", GERMAN)}),
    ):
        kept, held = loaded(made, "train")["en"], loaded(made, "dev")["en"]
        assert sorted(kept + held) == sorted(text for text, _ in ENGLISH)
        assert len(held) == 6  # .15 of twenty of each label
    assert loaded(made, "dev")["de"] == [text for text, _ in GERMAN]
    given = task(train=train, dev=write(tmp_path / "dev.csv", ENGLISH[:4]))
    assert len(loaded(given, "train")["en"]) == 40


def test_rows_of_languages_that_are_not_trained_on_are_judged_on(tmp_path: Path) -> None:
    marked = [(*row, "en") for row in ENGLISH] + [(*row, "de") for row in GERMAN]
    whole = write(tmp_path / "all.csv", marked, "text", "label", "lang")
    alone = task(train=whole, language="lang")
    assert loaded(alone, "dev")["de"] == [text for text, _ in GERMAN]
    both = task(train=whole, language="lang", supervised=["de"])
    kept, held = loaded(both, "train")["de"], loaded(both, "dev")["de"]
    assert sorted(kept + held) == [text for text, _ in GERMAN]
    assert len(held) == 2  # one of three of each label
    assert len(loaded(both, "dev")["en"]) == 6
    file = write(tmp_path / "dev.csv", ENGLISH[:4])
    mixed = task(train=whole, dev={"en": file}, language="lang", supervised=["de"])
    assert (loaded(mixed, "train")["de"], loaded(mixed, "dev")["de"]) == (kept, held)
    assert len(loaded(mixed, "train")["en"]) == 40
    given = task(train=whole, dev=whole, language="lang", supervised=["de"])
    assert loaded(given, "train")["de"] == loaded(given, "dev")["de"] == [t for t, _ in GERMAN]


def test_not_every_file_needs_the_column_of_languages_but_one_does(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", ENGLISH)
    marked = [(*row, "en") for row in ENGLISH[:4]] + [(*row, "de") for row in GERMAN]
    dev = write(tmp_path / "dev.csv", marked, "text", "label", "lang")
    found = loaded(task(train=train, dev=dev, language="lang"), "dev")
    assert {language: len(texts) for language, texts in found.items()} == {"de": 6, "en": 4}
    with pytest.raises(UsageError, match=r"task\.language=lng: is a column of no file"):
        loaded(task(train=train, dev=dev, language="lng"), "dev")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", ENGLISH)
    with pytest.raises(UsageError, match=r"task\.test: has no rows in 'de'; it has: none"):
        opened(task(train=train)).load("test", "de")
    with pytest.raises(DataError, match="no column 'kind'"):
        opened(task(train=train, label="kind")).load("train", "en")
    with pytest.raises(DataError, match="matches no file"):
        opened(task(train=train, dev=f"{tmp_path}/no-{{language}}.csv")).languages("dev")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no file of rows"):
        opened(task(train=train, dev=str(tmp_path / "empty"))).languages("dev")
    for name in ("a-de.csv", "b-de.csv"):
        write(tmp_path / "two" / name, GERMAN)
    with pytest.raises(DataError, match="has two files of 'de'"):
        files_of(str(tmp_path / "two"))
    write(tmp_path / "other" / "train.csv", GERMAN)
    with pytest.raises(DataError, match=r"train\.csv: has no language at its name's end"):
        files_of(str(tmp_path / "other"))


def test_languages_are_told_by_folders_and_long_codes_too(tmp_path: Path) -> None:
    for language in ("de", "fr"):
        write(tmp_path / language / "dev.csv", GERMAN)
    found = files_of(f"{tmp_path}/{{language}}/dev.csv")
    assert found == {lg: tmp_path / lg / "dev.csv" for lg in ("de", "fr")}
    for name in ("dev-zh-Hans.csv", "dev_pt_BR.csv", "sw.csv"):
        write(tmp_path / "codes" / name, GERMAN)
    assert set(files_of(str(tmp_path / "codes"))) == {"zh-Hans", "pt-BR", "sw"}


def test_bad_rows_are_all_named_or_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.csv"
    file.write_text("text,label\na,x\n ,x\nb,\nc,y\none\n")
    with pytest.raises(
        DataError, match=r"task\.dev: has 3 bad rows: .*line 6: .*empty text.*empty label"
    ):
        opened(task(train=str(file), dev=str(file))).load("train", "en")
    data = opened(task(train=str(file), dev=str(file), skip_bad=True))
    assert [e.text for e in data.load("train", "en")] == ["a", "c"]
    assert "row 2: has an empty text" in capsys.readouterr().err


def test_how_files_are_written_may_be_said(tmp_path: Path) -> None:
    file = tmp_path / "train.csv"
    file.write_bytes("text:label\nñ:x\n".encode("mac_roman"))
    made = task(train=str(file), dev=str(file), encoding="mac_roman", delimiter=":")
    assert loaded(made, "train") == {"en": ["ñ"]}
    assert task(train="x", encoding="utf-9").problems() == [
        "task.encoding = 'utf-9' is no encoding that Python knows; name one, as utf-8 or cp1252"
    ]
    assert "must be one character" in task(train="x", delimiter="ab").problems()[0]
    assert "name = 'files'" in TaskConfig("sib200", "x", delimiter=";").problems()[0]


texts = st.lists(
    st.tuples(st.sampled_from("abcdefghijkl"), st.sampled_from(["x", "y", "z"])), max_size=40
)


@given(texts, st.floats(0.01, 0.9))
def test_held_out_rows_are_of_each_label_and_share_no_text(
    rows: list[tuple[str, str]], share: float
) -> None:
    whole = [Example(text, label, "en") for text, label in rows]
    kept, held = stratified(whole, share)
    assert sorted(kept + held, key=whole.index) == sorted(whole, key=whole.index)
    assert not {e.text for e in kept} & {e.text for e in held}
    again = stratified([*reversed(whole)], share)
    if len({text for text, _ in rows}) == len(
        {*rows}
    ):  # a text with two labels counts for its first
        assert {e.text for e in again[1]} == {e.text for e in held}
        for label in "xyz":
            mine = {text for text, own in rows if own == label}
            count = len({e.text for e in held if e.label == label})
            wanted = round(share * len(mine))
            least, most = (1, len(mine) - 1) if len(mine) > 1 else (0, len(mine))
            assert count == min(max(least, wanted), most)
