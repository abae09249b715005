"""``xlt eval`` on rows of one's own."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.xlt_serve.cli.test_cli import run
from xlt_serve import load

ROWS = [
    ("the goal of the match", "sports", "en"),
    ("bread and soup", "food", "en"),
    ("rain and wind", "weather", "en"),
    ("the goal", "food", "en"),
    ("das tor", "sports", "de"),
    ("brot", "food", "de"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "test.csv"
    with file.open("w", newline="") as sink:
        csv.writer(sink).writerows([("body", "topic", "lang"), *ROWS])
    return file


COLUMNS = ("--text", "body", "--label", "topic", "--language-column", "lang")


def judged(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, err = run(capsys, "eval", *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_scores_are_what_predict_gives(
    capsys: pytest.CaptureFixture[str], bundle: Path, file: Path
) -> None:
    (model,) = judged(capsys, bundle, "--file", file, *COLUMNS)["models"]
    clf = load(bundle)
    for language in ("de", "en"):
        mine = [row for row in ROWS if row[2] == language]
        given = clf.predict([text for text, _, _ in mine], language=language)
        right = sum(p.label == label for p, (_, label, _) in zip(given, mine, strict=True))
        assert model["languages"][language]["accuracy"]["value"] == pytest.approx(right / len(mine))
        assert model["languages"][language]["rows"] == len(mine)
    both = [model["languages"][lg]["accuracy"]["value"] for lg in ("de", "en")]
    assert model["means"]["all"]["value"] == pytest.approx(sum(both) / 2)
    assert model["means"]["target"]["value"] == pytest.approx(both[0])
    assert "distant" not in model["means"]
    (model,) = judged(capsys, bundle, "--file", file, *COLUMNS, "--distant", "de,fr")["models"]
    assert model["means"]["distant"]["value"] == pytest.approx(both[0])


def test_a_column_called_language_is_one_and_codes_are_spelt_alike(
    capsys: pytest.CaptureFixture[str], bundle: Path, tmp_path: Path
) -> None:
    file = tmp_path / "test.csv"
    with file.open("w", newline="") as sink:
        head = ("text", "label", "language")
        csv.writer(sink).writerows([head, *((t, b, lg.upper()) for t, b, lg in ROWS)])
    (model,) = judged(capsys, bundle, "--file", file)["models"]
    assert {lg: row["rows"] for lg, row in model["languages"].items()} == {"de": 2, "en": 4}


def test_who_abstains_is_not_wrong(
    capsys: pytest.CaptureFixture[str], bundle: Path, file: Path
) -> None:
    always = judged(capsys, bundle, "--file", file, *COLUMNS)["models"][0]["languages"]["en"]
    rarely = ("--abstain-below", "1")
    never = judged(capsys, bundle, "--file", file, *COLUMNS, *rarely)["models"][0]["languages"][
        "en"
    ]
    assert (always["coverage"], never["coverage"], never["error"]) == (1.0, 0.0, None)
    assert never["accuracy"] == always["accuracy"]
    _, table, _ = run(capsys, "eval", bundle, "--file", file, *COLUMNS, *rarely)
    assert "coverage is the share of rows that it answered" in table


@pytest.mark.parametrize(
    "more",
    [
        ("--mode", "smoothed", "--samples", "50", "--alpha", "0.1"),
        ("--languages", "de"),
        ("--mode", "plain", "--max-length", "8"),
    ],
)
def test_modes_and_options(
    capsys: pytest.CaptureFixture[str], bundle: Path, file: Path, more: tuple[str, ...]
) -> None:
    place = "topics" if "smoothed" in more else bundle  # the shipped one votes
    first = judged(capsys, place, "--file", file, *COLUMNS, *more)
    assert first == judged(capsys, place, "--file", file, *COLUMNS, *more)
    if more[0] == "--languages":
        assert list(first["models"][0]["languages"]) == ["de"]


def test_a_model_beside_itself_and_a_page(
    capsys: pytest.CaptureFixture[str], bundle: Path, checkpoint: Path, file: Path, tmp_path: Path
) -> None:
    page = tmp_path / "<report>.html"
    same = ("--compare", f"A={bundle}", f"B={bundle},{checkpoint}")
    found = judged(capsys, *same, "--file", file, *COLUMNS, "--html", page)
    (gap,) = found["comparisons"]
    assert gap["runs"] == [1, 2]
    assert {each["mean"] for each in gap["gaps"].values()} == {0.0}
    text = page.read_text()
    assert "B (2 runs) less A (1 run)" in text
    assert "http" not in text.replace("http-equiv", "")
    _, table, _ = run(capsys, "eval", *same, "--file", file, *COLUMNS)
    assert "less A (1 run), points of accuracy" in table
    assert table.count("fewer than 100 rows: de, en") == 3  # each model's own notes
    assert "coverage" not in table
    _, table, _ = run(
        capsys, "eval", *same, "--file", file, *COLUMNS, "--abstain-below", "1", "--confusion"
    )
    assert table.count("coverage 0.000") == 3
    assert table.count("true label") == 3


def test_the_table_has_calibration_and_what_was_taken_for_what(
    capsys: pytest.CaptureFixture[str], bundle: Path, file: Path
) -> None:
    (model,) = judged(capsys, bundle, "--file", file, *COLUMNS)["models"]
    code, table, err = run(capsys, "eval", bundle, "--file", file, *COLUMNS)
    assert code == 0, err
    lines = table.splitlines()
    (german,) = (line for line in lines if line.startswith("de "))
    assert german.split()[-1] == f"{model['languages']['de']['calibration_error']:.3f}"
    cells = [line.split()[2:] for line in lines[lines.index("taken for") + 2 :]]
    both = [model["languages"][language]["confusion"] for language in ("de", "en")]
    summed = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(*both, strict=True)]
    assert [[int(cell) for cell in row] for row in cells] == summed


def test_wrong_calls(
    capsys: pytest.CaptureFixture[str], bundle: Path, file: Path, tmp_path: Path
) -> None:
    strange = tmp_path / "strange.csv"
    strange.write_text("body,topic,lang\na,x,en\n,x,en\n")
    for arguments, says in (
        ([bundle], "takes --file or --task"),
        (["--file", file], "takes a model or --compare"),
        ([bundle, "--file", file], "no column 'text' (for text); it has: body, topic, lang"),
        ([bundle, "--file", strange, *COLUMNS], "1 bad row"),
        ([bundle, "--file", strange, *COLUMNS, "--skip-bad"], "has none of the rows' labels (x)"),
        ([bundle, "--file", file, *COLUMNS, "--languages", "fr"], "the rows are in de, en"),
        ([bundle, "--file", tmp_path / "none.csv"], "is not there"),
        ([bundle, "--file", file, *COLUMNS, "--delimiter", ";"], "has no ';' in its first line"),
        ([bundle, "--file", file, *COLUMNS, "--encoding", "x"], "is no encoding that Python"),
        (["--compare", f"A={bundle}", "--file", file], "takes two names or more"),
        (["--compare", str(bundle), "B=x", "--file", file], "is not NAME=MODEL"),
        ([bundle, "--task", "sib200"], "give --data DIR"),
        ([bundle, "--file", file, "--html", tmp_path / "no" / "x.html"], "its folder is not there"),
        (["--compare", f"A={bundle}", f"A={bundle}", "--file", file], "A is there already"),
    ):
        code, _, err = run(capsys, "eval", *arguments)
        assert code in (1, 2), arguments
        assert says in err, err


def recorded(checkpoint: Path, out: Path, task: dict[str, Any]) -> Path:
    """A checkpoint that was trained by another task."""
    shutil.copytree(checkpoint, out)
    described = json.loads((out / "xlt.json").read_text())
    described["config"]["task"] = task
    (out / "xlt.json").write_text(json.dumps(described))
    return out


def test_a_checkpoint_is_judged_by_the_files_of_its_config(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, file: Path, tmp_path: Path
) -> None:
    """Also by a task's; a config that names no such files, and a bundle, say what to give."""
    task = {"name": "files", "train": str(file), "test": str(file)}
    task |= {"text": "body", "label": "topic", "language": "lang", "source": "en"}
    own = recorded(checkpoint, tmp_path / "own", task)
    given = judged(capsys, own, "--file", file, *COLUMNS)
    assert judged(capsys, own, "--split", "test") == given
    assert judged(capsys, own, "--task", "files", "--split", "test") == given
    held_out = judged(capsys, own, "--split", "dev")["models"][0]["languages"]
    assert held_out["de"]["rows"] == 2  # of a language that is not trained on: all
    assert 0 < held_out["en"]["rows"] < 4
    named = judged(capsys, checkpoint, "--split", "test", "--languages", "de")
    assert named["models"][0]["languages"]["de"]["rows"] == 30
    without = recorded(checkpoint, tmp_path / "without", task | {"test": ""})
    for arguments, says in (
        ([without, "--split", "test"], "without: names no test files; give --file FILE"),
        ([own, "--split", "test", "--languages", "fr"], "has no rows in 'fr'"),
        ([checkpoint, "--task", "files"], "was trained on sib200; give --file FILE"),
    ):
        code, _, err = run(capsys, "eval", *arguments)
        assert code == 2
        assert says in err, err


def test_a_bundle_knows_no_files_of_its_training(
    capsys: pytest.CaptureFixture[str], bundle: Path, file: Path
) -> None:
    for arguments in (["--split", "test"], ["--task", "files"], ["--task", "hub"]):
        code, _, err = run(capsys, "eval", bundle, *arguments)
        assert code == 2
        assert err.rstrip().endswith(
            "is a bundle, which knows no files of its training; give --file FILE"
        )
    code, _, err = run(capsys, "eval", bundle, "--file", file, "--split", "test")
    assert "takes --file or --task" in err


def test_a_bundle_is_judged_without_torch(bundle: Path, file: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from xlt_serve.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "eval", str(bundle), "--file", str(file), *COLUMNS],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "macro-F1" in done.stdout
