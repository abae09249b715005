"""``xlt init``: what it sees in a file, and that its config trains."""

from __future__ import annotations

import csv
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from xlt_training.data import TaskConfig, opened

from tests import ROOT
from tests.xlt_serve.cli.test_cli import run

GOODS = ("match", "goal", "player", "team", "coach", "race", "final", "league", "score", "season")
MEALS = ("bread", "soup", "cheese", "salad", "pasta", "cake", "sauce", "rice", "stew", "fish")
ROWS = [(f"the {word} was good", "sports") for word in GOODS]
ROWS += [(f"the {word} was good", "food") for word in MEALS]


def write(file: Path, rows: list[tuple[str, ...]], *names: str, delimiter: str = ",") -> Path:
    with file.open("w", newline="", encoding="utf-8") as sink:
        csv.writer(sink, delimiter=delimiter).writerows([names, *rows])
    return file


def test_it_sees_what_is_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    german = [("Das Spiel war gut und spannend", "sports", "de")] * 2
    rows = [(*row, "en") for row in ROWS] + german
    rows += [("the match was good", "food", "en"), ("x " * 400, "rare", "en")]
    file = write(tmp_path / "in.csv", rows, "Review", "Topic", "lang", delimiter=";")
    dev = write(
        tmp_path / "dev.csv",
        [("the goal was good", "sports", "en"), *[("other", "Sports", "en")] * 2],
        *("Review", "Topic", "lang"),
    )
    out = tmp_path / "made.toml"
    code, told, err = run(capsys, "init", file, "--dev", dev, "--out", out)
    assert code == 0, err
    for line in (
        "(csv, utf-8, fields apart by ';')",
        "text = Review, label = Topic, language = lang",
        "rows        24",
        "food 11, sports 12" if "food 11, sports 12" in told else "sports 12, food 11",
        "en 22, de 2",
        "! fewer than 8 rows of a label: rare",
        "! 1 rows repeat another",
        "! 1 texts have several labels: 'the match was good'",
        "! 1 texts of over 600 characters",
        "! 1 dev texts are trained on: 'the goal was good'",
        "! dev labels that the train rows lack: Sports 2",
    ):
        assert line in told
    table = tomllib.loads(out.read_text())
    assert table["task"] == {
        "name": "files",
        "train": str(file),
        "dev": str(dev),
        "text": "Review",
        "label": "Topic",
        "language": "lang",
        "source": "en",
    }
    assert '# supervised = ["de"]' in out.read_text()


def test_a_pair_leaks_where_both_texts_are_trained_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [(text, f"it is {label}", label) for text, label in ROWS]
    file = write(tmp_path / "in.csv", rows, "text", "second", "label")
    first, *_ = rows
    fresh = [(first[0], "it is another", "food")]
    for name, dev, leaks in (("none", fresh, 0), ("one", [*fresh, first], 1)):
        made = write(tmp_path / f"{name}.csv", dev, "text", "second", "label")
        given = ("--pair", "second", "--dev", made, "--out", tmp_path / f"{name}.toml")
        code, told, err = run(capsys, "init", file, *given)
        assert code == 0, err
        assert told.count("dev texts are trained on") == leaks
    assert "! 1 dev texts are trained on: 'the match was good | it is sports'" in told


def test_without_names_columns_are_guessed_and_languages_detected(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [(str(n), *row) for n, row in enumerate(ROWS)]
    file = write(tmp_path / "in.csv", rows, "n", "what", "kind")
    code, told, _ = run(capsys, "init", file, "--out", tmp_path / "o.toml")
    assert code == 0
    assert "text = what, label = kind" in told
    assert "languages   en 1" in told  # of most: "the soup was good" says little


def test_dev_rows_may_say_their_language_where_train_rows_do_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    train = write(tmp_path / "train.csv", ROWS, "text", "label")
    rows = [("the goal", "sports", "en"), ("das Tor", "sports", "de")]
    dev = write(tmp_path / "dev.csv", rows, "text", "label", "lang")
    code, _, err = run(capsys, "init", train, "--dev", dev, "--out", tmp_path / "o.toml")
    assert code == 0, err
    table = tomllib.loads((tmp_path / "o.toml").read_text())["task"]
    assert (table["language"], table["source"]) == ("lang", "en")


def test_test_rows_go_into_the_config_and_are_looked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    train = write(tmp_path / "train.csv", ROWS, "text", "label")
    dev = write(tmp_path / "dev.csv", [("das Tor", "sports")], "text", "label")
    rows = [("the goal was good", "sports"), ("das Tor", "sports"), ("new", "food")]
    test = write(tmp_path / "test.csv", rows, "text", "label")
    out = tmp_path / "o.toml"
    code, told, err = run(capsys, "init", train, "--dev", dev, "--test", test, "--out", out)
    assert code == 0, err
    assert "! 2 test texts are trained on or dev texts: 'das Tor'; 'the goal was good'" in told
    assert "dev texts are trained on" not in told
    task = tomllib.loads(out.read_text())["task"]
    assert (task["dev"], task["test"]) == (str(dev), str(test))
    test.write_text("text,label\nx,\n")
    code, _, err = run(capsys, "init", train, "--test", test, "--out", tmp_path / "a.toml")
    assert code in (1, 2)
    assert "row 1: has an empty label" in err


def test_its_config_trains(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, encoders: dict[str, Path]
) -> None:
    file = write(tmp_path / "in.csv", ROWS, "text", "label")
    out = tmp_path / "o.toml"
    assert run(capsys, "init", file, "--out", out)[0] == 0
    overrides = [f"encoder={encoders['bert']}", "train.epochs=1", "train.head_first=0"]
    code, told, err = run(capsys, "train", out, *overrides, "--out", tmp_path / "run")
    assert code == 0, err
    assert "dev score" in told


def test_wrong_calls(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good = write(tmp_path / "in.csv", ROWS, "text", "label")
    there = tmp_path / "there.toml"
    there.write_text("mine")
    holes = write(tmp_path / "holes.csv", [*ROWS, ("", "food"), ("x", "")], "text", "label")
    many = write(tmp_path / "many.csv", [*ROWS, *[("", "food")] * 5], "text", "label")
    alone = write(tmp_path / "one.csv", [(text,) for text, _ in ROWS], "text")
    for arguments, says in (
        ([good, "--out", there], "there.toml: is there already"),
        ([tmp_path / "none.csv"], "is not there"),
        (
            [holes, "--out", tmp_path / "a"],
            "2 bad rows: row 21: has an empty text; row 22: has an empty label",
        ),
        ([alone, "--out", tmp_path / "a"], "no column looks like labels"),
        ([good, "--text", "body", "--out", tmp_path / "a"], "no column 'body'"),
    ):
        code, _, err = run(capsys, "init", *arguments)
        assert code in (1, 2)
        assert says in err
    assert there.read_text() == "mine"
    code, told, _ = run(capsys, "init", holes, "--skip-bad", "--out", tmp_path / "b.toml")
    assert code == 0
    assert "2 bad rows are left out" in told
    _, every, _ = run(capsys, "init", many, "--skip-bad", "--out", tmp_path / "c.toml")
    assert all(f"row {number}: has an empty text" in every for number in range(21, 26))
    assert tomllib.loads((tmp_path / "b.toml").read_text())["task"]["skip_bad"] is True


def test_how_the_file_is_written_may_be_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And goes into the config, which reads the file in the same way."""
    file = tmp_path / "in.csv"
    file.write_bytes(b"text:label\n" + "ä:x\nß:y\n".encode("cp1252"))
    out = tmp_path / "made.toml"
    said = ("--encoding", "cp1252", "--delimiter", ":", "--out", out)
    code, told, err = run(capsys, "init", file, *said)
    assert code == 0, err
    assert "(csv, cp1252, fields apart by ':')" in told
    task = tomllib.loads(out.read_text())["task"]
    assert (task["encoding"], task["delimiter"]) == ("cp1252", ":")
    found = opened(TaskConfig(**(task | {"source": "en"}))).load("train", "en")
    assert {example.text for example in found} <= {"ä", "ß"}
    for wrong, words in (
        (("--encoding", "cp12"), "encoding 'cp12': is no encoding that Python knows"),
        (("--delimiter", ";"), "has no ';' in its first line: 'text:label'"),
    ):
        code, _, err = run(capsys, "init", file, *wrong, "--out", tmp_path / "other.toml")
        assert code in (1, 2)
        assert words in err


def test_a_typo_is_told_before_torch_is_imported(tmp_path: Path) -> None:
    made = tmp_path / "o.toml"
    made.write_text(
        'encoder = "small"\n[task]\nname = "files"\ntrain = "x.csv"\n[train]\nepoch = 3\n'
    )
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from xlt_serve.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "train", str(made), "seed=1", "--out", str(tmp_path / "o")],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert "train.epoch is not a known key, did you mean 'epochs'?" in done.stderr


def test_it_needs_no_torch(tmp_path: Path) -> None:
    file = write(tmp_path / "in.csv", ROWS, "text", "label")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from xlt_serve.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "init", str(file), "--out", str(tmp_path / "o.toml")],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
