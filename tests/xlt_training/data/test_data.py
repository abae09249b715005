from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from xlt_training.data import TASKS, TaskConfig, languages, load_split, opened
from xlt_training.data.hub import HubSource, OwnHub, hub_rows
from xlt_training.data.tasks import to_examples

from xlt_serve.errors import DataError, UsageError
from xlt_serve.files.labelled import Columns
from xlt_serve.files.rows import numbered_rows, read_rows

ROWS = [
    {"text": 'He said "no", twice', "label": "a"},
    {"text": "Größe — 大きさ — حجم", "label": "b"},
]


def write(folder: Path, ending: str) -> Path:
    file = folder / f"rows{ending}"
    if ending == ".tsv":
        file.write_text("text\tlabel\n" + "".join(f"{r['text']}\t{r['label']}\n" for r in ROWS))
    elif ending == ".csv":
        file.write_text(
            '\ufefftext,label\n"He said ""no"", twice",a\nGröße — 大きさ — حجم,b\n',
            encoding="utf-8",
        )
    elif ending == ".jsonl":
        file.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n")
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
    return file


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_all_formats_give_the_same_rows(tmp_path: Path, ending: str) -> None:
    assert read_rows(write(tmp_path, ending)) == ROWS


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.tsv", b"text\tlabel\nfine\ta\nb\xff\tb\n", "row 2: is not valid UTF-8"),
        ("a.tsv", b"text\tlabel\none\ttwo\tthree\n", "line 2: has 3 fields, the header has 2"),
        ("a.csv", b"text,label\na,b,c\n", "line 2: has 3 fields, the header has 2"),
        ("a.jsonl", b'{"text": "a"}\nnope\n', "line 2: is not JSON"),
        ("a.jsonl", b"[1]\n", "is not a JSON object"),
        ("a.parquet", b"nope", "is not Parquet"),
        ("a.txt", b"", "has no known ending"),
        ("a.tsv", b"text\ttext\na\tb\n", "names a column twice"),
        ("a.jsonl", b'{"text": "a", "label": "b"}\n{"text": "c"}\n', "row 2: has no label"),
        (
            "a.csv",
            b"text,label\n" + b"x,y\n" * 20000 + b"\xff,z\n",
            "row 20001: is not valid UTF-8",
        ),
    ],
)
def test_bad_files_are_one_clear_line(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        read_rows(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_endings_are_named_as_they_are_written(tmp_path: Path) -> None:
    """.txt is not among them: it is no table."""
    with pytest.raises(DataError) as caught:
        read_rows(tmp_path / "a.doc")
    assert str(caught.value).endswith(
        "has no known ending; known: .csv, .tsv, .jsonl, .ndjson, .parquet, .pq, also compressed"
    )


@pytest.mark.parametrize(
    ("task", "says"), [("sib200", "task.data=FOLDER or hub"), ("xsid", "task.data=FOLDER")]
)
def test_a_task_without_its_data_says_how_to_give_them(
    tmp_path: Path, task: str, says: str
) -> None:
    with pytest.raises(DataError) as caught:
        load_split(task, tmp_path, "train", "en")
    assert "is not there" in str(caught.value)
    assert str(caught.value).endswith(f"say where {task}'s files are: {says}")


def test_all_bad_rows_are_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text,label\na,b\nc\nd,e,f\ng,h\n" + "i\n" * 40)
    with pytest.raises(
        DataError, match=r"42 bad rows: line 3: .*; line 4: .*; and 22 more, named above"
    ):
        read_rows(file)
    told = capsys.readouterr().err.splitlines()
    bad: list[str] = []
    assert [(n, row["text"]) for n, row in numbered_rows(file, bad)] == [(1, "a"), (4, "g")]
    assert len(bad) == 42
    assert told == [f"bad: {problem}" for problem in bad[20:]]


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_missing_files_and_folders(tmp_path: Path, ending: str) -> None:
    with pytest.raises(DataError, match="is not there"):
        read_rows(tmp_path / f"none{ending}")
    (tmp_path / f"dir{ending}").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        read_rows(tmp_path / f"dir{ending}")


def test_a_missing_column_names_those_there_are(tmp_path: Path) -> None:
    columns = Columns(label="topic")
    with pytest.raises(DataError, match=r"no column 'topic' \(for label\); it has: text, label"):
        to_examples(ROWS, columns, "en", "my.csv")
    named = Columns()
    with pytest.raises(DataError, match=r"my\.csv: has 1 bad row: row 2: has an empty label"):
        to_examples([ROWS[0], ROWS[1] | {"label": " "}], named, "en", "my.csv")
    with pytest.raises(DataError, match="has no rows"):
        to_examples([], columns, "en", "my.csv")


def test_toy_splits(toy_data: Path) -> None:
    assert languages("sib200", toy_data, "train") == ["de", "en"]
    assert len(load_split("sib200", toy_data, "dev", "en")) == 30
    pairs = load_split("xnli", toy_data, "dev", "en")
    assert len(pairs) == 20  # the even rows
    assert pairs[0].pair
    with pytest.raises(UsageError, match="is not a task; known: sib200"):
        load_split("nope", toy_data, "dev", "en")
    with pytest.raises(UsageError, match="xsid has the splits train, dev, test"):
        load_split("xsid", toy_data, "final", "en")


def test_a_row_that_one_language_lacks_is_left_out_in_all(tmp_path: Path) -> None:
    """ "NS" stands for a sentence of PAWS-X that was never translated; labels then agree by row."""
    rows = {"en": ["a", "b", "c", "d", "e", "f"], "de": ["A", "B", "NS", "D", "E", "F"]}
    (tmp_path / "pawsx").mkdir()
    for split, language in itertools.product(("dev", "test"), rows):
        pairs = [
            ("x", "NS") if (language, t) == ("de", "F") else (t, f"{t}{t}") for t in rows[language]
        ]
        lines = [f"{n % 2}\t{one}\t{other}" for n, (one, other) in enumerate(pairs)]
        file = tmp_path / "pawsx" / f"{split}-{language}.tsv"
        file.write_text("label\tsentence1\tsentence2\n" + "\n".join(lines) + "\n")

    def found(split: str, language: str) -> list[tuple[str, str]]:
        return [(e.id, e.text) for e in load_split("pawsx", tmp_path, split, language)]

    assert found("test", "en") == [("0", "a"), ("1", "b"), ("3", "d"), ("4", "e")]
    assert found("test", "de") == [("0", "A"), ("1", "B"), ("3", "D"), ("4", "E")]
    assert found("dev", "en") == [("0", "a"), ("4", "e")]  # of the even rows
    assert found("train", "en") == [("1", "b"), ("3", "d"), ("5", "f")]  # the odd ones, not judged


def test_hub_rows_put_class_numbers_back_into_names() -> None:
    """The hub can't be reached here; the dataset is a real one of the library, made in memory."""
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"premise": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    made = Dataset.from_dict({"premise": ["a", "b"], "label": [1, 0]}, features=features)
    asked: list[object] = []

    def load(name: str, config: str, split: str) -> Dataset:
        asked.append((name, config, split))
        return made

    source = HubSource("x/y", {"text": "premise", "label": "label"}, {"de": "german"})
    rows = hub_rows(source, "dev", "de", load)
    assert rows == [{"text": "a", "label": "yes"}, {"text": "b", "label": "no"}]
    assert asked == [("x/y", "german", "validation")]
    with pytest.raises(DataError, match="has no column 'text'"):
        hub_rows(HubSource("x/y", {"text": "text", "label": "label"}), "dev", "de", load)


def test_hub_rows_without_label_or_text_are_bad_rows() -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    made = Dataset.from_dict(
        {"text": ["a", None, "c", "d"], "label": [1, 0, -1, None]}, features=features
    )
    source = HubSource("x/y", {"text": "text", "label": "label"})
    rows = hub_rows(source, "test", "en", lambda *_, **__: made)
    with pytest.raises(
        DataError,
        match=r"3 bad rows: row 2: has an empty text; row 3: has an empty label; row 4: .* label",
    ):
        to_examples(rows, Columns(), "en", "x/y test en")


def test_a_dataset_of_the_hub_is_split_and_checked_as_files_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``datasets`` reads a folder as it reads the hub; this one has no validation split, but a column of
    languages and a bad row."""
    from datasets import load_dataset

    folder = tmp_path / "set"
    folder.mkdir()
    rows = [f"{lg} {n},{'ab'[n % 2]},{lg}" for lg in ("en", "de", "fr") for n in range(20)]
    (folder / "train.csv").write_text("text,label,lang\n" + "\n".join([*rows, "x,,en"]))

    def made(**given: object) -> OwnHub:
        keys = {"source": "en", "supervised": ["de"], "language": "lang"} | given
        found = opened(TaskConfig("hub", str(folder), configs={"all": "default"}, **keys))  # type: ignore[arg-type]
        assert isinstance(found, OwnHub)
        return replace(found, reader=partial(load_dataset, cache_dir=str(tmp_path / "cache")))

    with pytest.raises(DataError, match=r"row 61: has an empty label.*task\.skip_bad=true"):
        made().load("train", "en")
    data = made(skip_bad=True, held_out=0.3)
    assert data.languages("dev") == ["de", "en", "fr"]
    for language in ("en", "de"):
        kept, held = data.load("train", language), data.load("dev", language)
        assert (len(kept), len(held)) == (14, 6)
        assert {e.text for e in [*kept, *held]} == {f"{language} {n}" for n in range(20)}
    assert len(data.load("dev", "fr")) == 20
    assert capsys.readouterr().err.count("left out: ") == 1
    with pytest.raises(DataError, match="has no dev rows in 'it'"):
        data.load("dev", "it")
    with pytest.raises(DataError, match=r"has no split 'validation'.*task\.splits\.dev"):
        made(skip_bad=True, splits={"dev": "validation"}).load("dev", "en")
    (folder / "validation.csv").write_text("text,label,lang\ndev,a,en\n")
    given = made(skip_bad=True)
    assert [e.text for e in given.load("dev", "en")] == ["dev"]
    assert [len(given.load("train", lg)) for lg in ("en", "de")] == [20, 16]


def test_no_network_is_a_clear_error() -> None:
    with pytest.raises(DataError, match=r"can't be loaded from the hub.*give a folder"):
        load_split("sib200", "hub", "dev", "en")
    with pytest.raises(UsageError, match="is not on the hub"):
        load_split("xsid", "hub", "dev", "en")


@pytest.mark.real
@pytest.mark.parametrize("task", TASKS)
def test_real_tasks_load_in_every_language(data: Path, task: str) -> None:
    train = load_split(task, data, "train", "en")
    known = {example.label for example in train}
    there = languages(task, data, "dev")
    assert "en" in there
    assert len(there) >= 7 or there == ["en"]
    for language in there:
        dev = load_split(task, data, "dev", language)
        assert {example.label for example in dev} <= known
        assert all(example.text.strip() for example in dev)
        assert all((example.pair is not None) == bool(TASKS[task].pair) for example in dev)


@pytest.mark.real
def test_pawsx_labels_are_the_same_in_all_languages(data: Path) -> None:
    found = {
        language: {e.id: e.label for e in load_split("pawsx", data, "dev", language)}
        for language in languages("pawsx", data, "dev")
    }
    assert len(found) == 7
    assert all(labels == found["en"] for labels in found.values())


@pytest.mark.real
def test_pawsx_train_and_dev_share_no_text(data: Path) -> None:
    def texts(split: str) -> set[str | None]:
        examples = load_split("pawsx", data, split, "en")
        return {e.text for e in examples} | {e.pair for e in examples}

    assert not texts("train") & texts("dev")
    assert len(load_split("pawsx", data, "dev", "en")) == 929  # 71 are missing in some language
    assert len(load_split("pawsx", data, "train", "en")) > 500
