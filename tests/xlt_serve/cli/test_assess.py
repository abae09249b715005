"""``xlt assess`` on a toy bundle: what it says of texts without labels, and the texts that it wants labelled."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import ROOT
from tests.xlt_serve.cli.test_cli import run
from xlt_serve import bundle as bundles
from xlt_serve import load
from xlt_serve.text.tokens import Tokens

COLUMNS = ("--text", "body", "--label", "topic", "--language-column", "lang")


def sentences(toy_data: Path, split: str, language: str) -> list[tuple[str, str]]:
    lines = (toy_data / "sib200" / f"{split}-{language}.tsv").read_text("utf-8").splitlines()[1:]
    return [(text, label) for _, label, text in (line.split("\t") for line in lines)]


def write(file: Path, rows: list[tuple[str, str, str]]) -> Path:
    with file.open("w", newline="", encoding="utf-8") as sink:
        csv.writer(sink).writerows([("body", "topic", "lang"), *rows])
    return file


@pytest.fixture
def file(tmp_path: Path, toy_data: Path) -> Path:
    """English and German with labels, French without; a text of it twice."""
    rows = [(t, label, lg) for lg in ("en", "de") for t, label in sentences(toy_data, "test", lg)]
    french = [(f"{t} pluie", "", "fr") for t, _ in sentences(toy_data, "dev", "de")]
    return write(tmp_path / "texts.csv", [*rows, *french, french[0], ("\u4f60 the x", "", "fr")])


def assessed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, err = run(capsys, "assess", *arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_it_says_what_predict_says(
    capsys: pytest.CaptureFixture[str], bundle: Path, file: Path
) -> None:
    found = assessed(capsys, bundle, "--file", file, *COLUMNS, "--abstain-below", "0.9")
    clf = load(bundle)
    with file.open(encoding="utf-8") as source:
        rows = list(csv.DictReader(source))
    vocabulary = clf.encoder._tokenizer
    unknown = vocabulary.token_to_id("<unk>")
    for language in ("en", "de", "fr"):
        mine = [row for row in rows if row["lang"] == language]
        texts = [row["body"] for row in mine]
        given = clf.predict(texts, language=language, abstain_below=0.9)
        sure = np.array([max(p.probabilities.values()) for p in given])
        said = found["languages"][language]
        assert said["rows"] == len(mine)
        assert said["share"] == pytest.approx(len(mine) / len(rows))
        assert said["confidence"] == pytest.approx(sure.mean())
        assert said["abstained"] == pytest.approx((sure < 0.9).mean())
        pieces = [vocabulary.encode(text, add_special_tokens=False).ids for text in texts]
        whole = sum(map(len, pieces))
        assert said["tokens_per_word"] == pytest.approx(whole / sum(len(t.split()) for t in texts))
        assert said["unknown"] == pytest.approx(sum(p.count(unknown) for p in pieces) / whole)
        if language == "fr":
            assert said["accuracy"] is None
            assert said["unknown"] > 0
            continue
        best = [max(p.probabilities, key=lambda label: p.probabilities[label]) for p in given]
        right = np.mean([b == row["topic"] for b, row in zip(best, mine, strict=True)])
        assert said["accuracy"]["value"] == pytest.approx(right)
        assert said["labelled"] == len(mine)
    assert found["known"] == {"de": "labelled rows", "en": "labelled rows"}
    assert found["label_next"] == "fr"
    assert found["methods"]["agreement"] is None
    for method in ("threshold", "confidence", "confidence+"):
        assert found["methods"][method]["languages"] == 2
    entry = clf.bundle.manifest.checks["training_text"]
    logits = clf.logits(
        [p for t in clf.encoder.encode(texts) if isinstance(t, Tokens) for p in t.pieces]
    )
    apart = (logits - logits.mean(axis=1, keepdims=True))[:, None] - np.array(entry["centres"])
    nearest = np.sqrt(np.square(apart / entry["scale"]).mean(axis=2)).min(axis=1)
    wanted = np.median(nearest) / entry["typical"]
    assert found["languages"]["fr"]["distance"] == pytest.approx(wanted, rel=1e-4)


def test_the_sample_is_labelled_and_read_again(
    capsys: pytest.CaptureFixture[str], bundle: Path, file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "to-label.csv"
    common = (bundle, "--file", file, *COLUMNS, "--sample", out, "--count", "28")
    code, table, err = run(capsys, "assess", *common)
    assert code == 0, err
    assert "label next: fr" in table
    assert "28 texts in fr" in err
    with out.open(encoding="utf-8") as source:
        rows = list(csv.DictReader(source))
    assert len({row["body"] for row in rows}) == 28
    with file.open(encoding="utf-8") as source:
        texts = [row["body"] for row in csv.DictReader(source)]
    assert all(texts[int(row["xlt_row"]) - 1] == row["body"] for row in rows)
    assert {row["topic"] for row in rows} == {""}
    drawn = [row["xlt_drawn"] for row in rows]
    assert (drawn.count("random"), drawn.count("unsure")) == (14, 14)
    code, _, err = run(capsys, "assess", *common)  # nobody's labels are written over
    assert code == 2
    assert "is there already, perhaps with labels" in err
    with out.open("w", newline="", encoding="utf-8") as sink:
        writer = csv.DictWriter(sink, list(rows[0]))
        writer.writeheader()
        writer.writerows([row | {"topic": "food"} for row in rows])
    code, table, err = run(capsys, "eval", bundle, "--file", out, *COLUMNS)
    assert code == 0, err
    assert "fr             28" in table
    found = assessed(capsys, bundle, "--file", file, *COLUMNS, "--labelled", out)
    assert found["languages"]["fr"]["labelled"] == 14  # those by chance
    assert any("fewer than 20 labels" in note for note in found["notes"])


def test_labels_elsewhere_and_languages_by_their_looks(
    capsys: pytest.CaptureFixture[str], bundle: Path, tmp_path: Path, toy_data: Path
) -> None:
    """Labels in one file for each language; texts that name none."""
    german = "Wir haben heute eine sehr gute Suppe gegessen und danach noch Brot mit Salz gekauft."
    french = "Nous avons mangé une très bonne soupe avec du pain et du fromage ce soir à la maison."
    file = tmp_path / "texts.jsonl"
    rows = [{"text": f"{t} {n}"} for n in range(30) for t in (german, french)]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "12345"}]))
    place = toy_data / "sib200" / "dev-{language}.tsv"
    found = assessed(capsys, bundle, "--file", file, "--labelled", place)
    assert {lg: each["rows"] for lg, each in found["languages"].items()} == {
        "de": 30,
        "fr": 30,
        "unknown": 1,
    }
    assert found["known"] == {"de": "labelled rows", "en": "labelled rows"}
    assert found["languages"]["de"]["labelled"] == 30  # of the other file
    assert found["label_next"] == "fr"


def test_an_old_bundle_says_what_it_lacks(
    capsys: pytest.CaptureFixture[str], bundle: Path, tmp_path: Path, toy_data: Path
) -> None:
    """Without labelled rows, errors are measured on what the manifest has; without that, not at all."""
    old = tmp_path / "old"
    shutil.copytree(bundle, old)
    manifest = bundles.load(old).manifest
    checks = {name: value for name, value in manifest.checks.items() if name != "training_text"}
    bundles.save(old, replace(manifest, checks=checks))
    rows = [(text, "", "fr") for text, _ in sentences(toy_data, "dev", "de")]
    file = write(tmp_path / "texts.csv", rows)
    common = ("--file", file, *COLUMNS)
    found = assessed(capsys, old, *common)
    assert found["languages"]["fr"]["distance"] is None
    assert any("no summary of its training text" in note for note in found["notes"])
    assert set(found["known"].values()) == {"the bundle's scores on its dev rows"}
    assert found["methods"]["threshold"]["languages"] == 2
    bundles.save(old, replace(manifest, checks={}, scores={}))
    _, table, _ = run(capsys, "assess", old, *common)
    assert "how far off it is, is not known" in table
    assert "distance" not in table.splitlines()[1]


def test_agreement_with_translations(
    capsys: pytest.CaptureFixture[str], bundle: Path, tmp_path: Path, toy_data: Path
) -> None:
    """Translations that change the label of every second text."""
    german, english = (sentences(toy_data, "dev", lg) for lg in ("de", "en"))
    clf = load(bundle)
    told = {
        p.label: text
        for text, p in zip(
            [t for t, _ in english], clf.predict([t for t, _ in english]), strict=True
        )
    }
    rows, lines = [], ["source\ttarget\ttext\ttranslation"]
    for number, answer in enumerate(clf.predict([t for t, _ in german])):
        other = next(label for label in told if (label == answer.label) == (number % 2 == 0))
        rows.append((german[number][0], german[number][1], "de"))
        if number != 3:  # one has no translation
            lines.append(f"de\ten\t{german[number][0]}\t{told[other]}")
    (tmp_path / "table.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    engines = tmp_path / "translators.toml"
    engines.write_text(
        '[engine.t]\nkind = "recorded"\nfile = "table.tsv"\n[routes]\ndefault = ["t"]\n'
    )
    rows += [(text, label, "en") for text, label in english]
    file = write(tmp_path / "texts.csv", rows)
    found = assessed(capsys, bundle, "--file", file, *COLUMNS, "--translators", engines)
    assert found["languages"]["de"]["agreement"] == pytest.approx(15 / 29)
    assert found["languages"]["en"]["agreement"] is None  # they are their own translation
    assert found["label_next"] is None


def test_pairs(
    capsys: pytest.CaptureFixture[str], pair_bundle: Path, toy_data: Path, tmp_path: Path
) -> None:
    place = toy_data / "xnli" / "dev-{language}.tsv"
    columns = ("--text", "premise", "--pair", "hypothesis")
    out = tmp_path / "to-label.csv"
    more = ("--label", "", "--sample", out, "--count", "4")
    code, _table, err = run(capsys, "assess", pair_bundle, "--file", place, *columns, *more)
    assert code == 0, err
    with out.open(encoding="utf-8") as source:
        names = csv.DictReader(source).fieldnames
    assert names == ["xlt_row", "premise", "hypothesis", "language", "label", "xlt_drawn"]


def test_wrong_calls(
    capsys: pytest.CaptureFixture[str], bundle: Path, file: Path, tmp_path: Path
) -> None:
    bad = write(tmp_path / "bad.csv", [("a", "", "de"), ("", "", "de"), ("b", "", "")])
    strange = write(tmp_path / "strange.csv", [("a", "x", "en"), ("b", "", "en")])
    empty = write(tmp_path / "empty.csv", [])
    many = write(tmp_path / "many.csv", [("a", "", f"id {n}") for n in range(600)])
    for arguments, says in (
        (["--file", many, *COLUMNS], "lang: names over 500 languages"),
        (["--file", file], "no column 'text' (for text); it has: body, topic, lang"),
        (["--file", tmp_path / "none.csv"], "is not there"),
        (["--file", bad, *COLUMNS], "2 bad rows"),
        (["--file", empty, *COLUMNS], "has no rows"),
        (["--file", strange, *COLUMNS], "none of which the model has"),
        (["--file", file, *COLUMNS, "--labelled", bad], "has an empty topic"),
        (["--file", file, *COLUMNS, "--pair", "topic"], "classifies single texts"),
        (["--file", file, *COLUMNS, "--sample", tmp_path / "x.tsv"], "name it OUT.csv"),
        (["--file", file, *COLUMNS, "--sample", tmp_path / "no" / "x.csv"], "is not there; make"),
        (["--file", file, *COLUMNS, "--count", "1"], "must be at least 2"),
        ([], "required: --file"),
    ):
        code, _, err = run(capsys, "assess", bundle, *arguments)
        assert code in (1, 2), arguments
        assert says in err, err
    code, table, err = run(capsys, "assess", bundle, "--file", bad, *COLUMNS, "--skip-bad")
    assert code == 0
    assert err.count("left out: ") == 2
    assert "de                1" in table


def test_no_torch(bundle: Path, file: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from xlt_serve.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "assess", str(bundle), "--file", str(file), *COLUMNS],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "label next: fr" in done.stdout
