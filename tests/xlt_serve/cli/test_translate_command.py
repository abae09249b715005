"""``xlt translate``, as somebody with a CSV calls it, up to the pairs that X-Mixup trains on."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from xlt_training.data import TaskConfig, opened
from xlt_training.data.translations import translated_train
from xlt_training.loop.method import Context

from tests import ROOT
from tests.xlt_serve.cli.test_cli import run
from xlt_serve.errors import DataError
from xlt_serve.translation.apertium import installed
from xlt_serve.translation.recorded import COLUMNS

TEXTS = [f"the team number {n} won its match in the old town" for n in range(12)]
GERMAN = {t: t.replace("the team number", "die Mannschaft Nummer").replace(
    "won its match in the old town", "gewann ihr Spiel in der alten Stadt"
) for t in TEXTS}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A CSV without ids, its config, and an engine: a table that knows its texts but one."""
    with (tmp_path / "train.csv").open("w", newline="") as sink:
        rows = [(text, "ab"[n % 2]) for n, text in enumerate(TEXTS)]
        csv.writer(sink).writerows([("body", "topic"), *rows])
    pairs = [("en", "de", a, b) for a, b in list(GERMAN.items())[1:]]
    pairs += [("de", "en", b, a.replace("won", "has won")) for _, _, a, b in pairs]
    table = [json.dumps(dict(zip(COLUMNS, p, strict=True))) for p in pairs]
    (tmp_path / "table.jsonl").write_text("\n".join(table))
    (tmp_path / "t.toml").write_text('[engine.table]\nkind = "recorded"\nfile = "table.jsonl"\n')
    (tmp_path / "shop.toml").write_text(
        f"""encoder = "small"
[task]
name = "files"
train = "{tmp_path}/train.csv"
text = "body"
label = "topic"
translations = "{tmp_path}/mt"
"""
    )
    return tmp_path


def test_a_config_is_translated_and_finds_its_pairs(
    capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    common = (
        "--to",
        "de",
        "--round-trip",
        "--translators",
        files / "t.toml",
        "--out",
        files / "mt",
    )
    code, told, err = run(capsys, "translate", files / "shop.toml", *common)
    assert (code, "no translation" in err) in ((1, True), (0, False))  # the first may be held out
    assert told.splitlines()[1].startswith("en-de train")
    task = TaskConfig("files", train=str(files / "train.csv"), text="body", label="topic")
    examples = opened(task).load("train", "en")
    context = Context("en", 0, translations=files / "mt")
    found = translated_train(examples, context, [])
    known = [example for example in examples if example.text != TEXTS[0]]
    assert [e.text for e in found] == [GERMAN[e.text] for e in known]
    assert [e.source for e in found] == [e.texts() for e in known]
    assert [e.label for e in found] == [e.label for e in known]
    trips = [e.text.replace("won", "has won") for e in known]
    assert [e.round_trip for e in found] == [(trip,) for trip in trips]
    # A row is put before the others: their numbers are now those of other texts.
    lines = (files / "train.csv").read_text().splitlines()
    (files / "train.csv").write_text("\n".join([lines[0], "another,a", *lines[1:]]))
    moved = opened(task).load("train", "en")
    with pytest.raises(DataError, match="was translated from another text than"):
        translated_train(moved, context, [])


def test_a_file_is_translated_and_told_of_as_json(
    capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    call = ("translate", files / "train.csv", "--text", "body", "--from", "en", "--to", "de")
    call += ("--split", "dev", "--translators", files / "t.toml", "--out", files / "mt", "--json")
    for _ in range(2):  # the second run ends as the first
        code, told, err = run(capsys, *call)
        assert code == 1
        assert "1 rows: have no translation (table has nothing for this text); the same" in err
        (found,) = json.loads(told)
        assert (found["rows"], found["kept"], found["failed"]) == (12, 11, 1)
    with (files / "mt" / "en-de.dev.tsv").open() as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    assert [row["id"] for row in rows] == [str(number) for number in range(1, 12)]


def test_wrong_calls(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    train, out = files / "train.csv", files / "out"
    engines = ("--translators", files / "t.toml", "--out", out)
    body = ("--text", "body")
    for arguments, words in (
        ((train, "--to", "de", *engines), "does not say its language; give --from en"),
        ((train, "--from", "en", "--to", "de", *engines), "no column 'text' (for text)"),
        ((train, *body, "--from", "en", "--to", "en", *engines), "is the language of the texts"),
        ((train, *body, "--from", "en,fr", "--to", "de", *engines), "--from fr: the rows are in en"),
        ((train, *body, "--from", "en", "--to", "de", "--split", "train,dev", *engines), "one split"),
        ((files / "no.csv", "--from", "en", "--to", "de", *engines), "is not there"),
        ((files / "no.toml", "--to", "de", *engines), "is not there"),
        ((train, *body, "--from", "en", "--to", "de,de", *engines), "would be written twice"),
        (("sib200", "--to", "de", *engines), "task.data is required"),
        (("sib20", "--to", "de", *engines), "did you mean 'sib200'?"),
        ((files / "shop.toml", "--from", "fr", "--to", "en", *engines), "has no rows in 'fr'"),
        ((train, *body, "--from", "en", "--to", "de", "--translators", "no.toml", "--out", out), "no.toml: is not there"),
    ):  # fmt: skip
        code, _, err = run(capsys, "translate", *arguments)
        assert code in (1, 2), arguments
        assert words in err
        assert not out.exists()


def test_translations_of_other_rows_are_no_translations(files: Path) -> None:
    (files / "mt").mkdir()
    (files / "mt" / "en-de.train.tsv").write_text("id\tengine\ttext\nx\te\ty\n")
    task = TaskConfig("files", train=str(files / "train.csv"), text="body", label="topic")
    context = Context("en", 0, translations=files / "mt")
    with pytest.raises(DataError, match=r"en-de\.train\.tsv: has no id of the train set"):
        translated_train(opened(task).load("train", "en"), context, [])


@pytest.mark.skipif(
    shutil.which("apertium-wblank-mode") is None or "eng-spa" not in installed(),
    reason="Apertium en-es is not installed (apt install apertium apertium-eng-spa)",
)
def test_a_process_that_is_killed_or_interrupted_loses_nothing(tmp_path: Path) -> None:
    """A real engine: SIGKILL, then SIGINT, then to the end; every text is there, and there once."""
    texts = [f"the team number {number} won its match" for number in range(600)]
    (tmp_path / "in.csv").write_text("\n".join(["text", *texts]))
    (tmp_path / "t.toml").write_text('[engine.apertium]\nkind = "apertium"\nbatch = 8\n')
    log = tmp_path / "mt" / "en-es.log.jsonl"
    call = [sys.executable, "-m", "xlt_serve.cli", "translate", str(tmp_path / "in.csv")]
    call += ["--from", "en", "--to", "es", "--translators", str(tmp_path / "t.toml")]
    call += ["--out", str(tmp_path / "mt")]
    for ending, code, reached in ((signal.SIGKILL, -9, 60), (signal.SIGINT, 1, 200)):
        process = subprocess.Popen(
            call,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            # Who starts this in the background may ignore interruptions, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        while process.poll() is None and (
            not log.exists() or log.read_bytes().count(b"\n") < reached
        ):
            time.sleep(0.005)
        process.send_signal(ending)
        _, said = process.communicate(timeout=60)
        assert process.returncode == code
        assert not (tmp_path / "mt" / "en-es.train.tsv").exists()
        assert ("the same command goes on" in said) == (ending == signal.SIGINT)
    before = log.read_bytes()
    done = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "en-es train          600     600  100.0%" in done.stdout
    assert log.read_bytes().startswith(before[: before.rindex(b"\n")])
    made = [json.loads(line)["text"] for line in log.read_bytes().splitlines()[1:]]
    assert sorted(made) == sorted(texts)
    with (tmp_path / "mt" / "en-es.train.tsv").open(newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    assert [row["id"] for row in rows] == [str(number) for number in range(600)]
