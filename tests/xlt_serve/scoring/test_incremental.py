"""A finished output grows: new files, or new and changed rows; the rest stays as it is."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.xlt_serve.scoring.fakes import Fake, opening
from tests.xlt_serve.scoring.test_answered import Dying, asked, keeping, load_labels
from tests.xlt_serve.scoring.test_formats import read, write
from tests.xlt_serve.scoring.test_resume import Stop, rows
from xlt_serve.errors import UsageError
from xlt_serve.scoring import Order, score
from xlt_serve.scoring.journal import Journal


@pytest.fixture
def order(bundle: Path, tmp_path: Path) -> Order:
    source = tmp_path / "in"
    source.mkdir()
    for name in "ab":
        write(source / f"{name}.csv", [r | {"text": f"{name} {r['text']}"} for r in rows(30)])
    found = Order(str(source), str(tmp_path / "out") + "/", str(bundle), window=10)
    score(found, open_predictor=opening())
    return found


def stamps(folder: str) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in Path(folder).iterdir()}


def test_a_new_file_in_a_finished_folder(order: Order, tmp_path: Path) -> None:
    before = stamps(order.out)
    write(tmp_path / "in" / "c.csv", rows(20))
    fakes: list[Fake] = []
    counts = score(order, open_predictor=keeping(fakes)).counts
    assert asked(fakes) == Counter(row["text"] for row in rows(20))
    assert counts.rows == 20
    after = stamps(order.out)
    assert {name: after[name] for name in before} == before
    assert len(read(tmp_path / "out" / "c.csv")) == 20
    receipt = json.loads((tmp_path / "out.score.json").read_text())
    assert receipt["counts"]["rows"] == 80
    assert set(receipt["output"]) == {"a.csv", "b.csv", "c.csv"}
    again = score(order, open_predictor=opening())
    assert (again.counts.rows, again.said) == (80, "")  # was finished before


def test_what_a_kill_after_the_last_rename_left_goes(
    order: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in" / "c.csv", rows(20))
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "remove", lambda self: None)
        score(order, open_predictor=opening())
    assert (tmp_path / "out.partial").exists()
    assert score(order, open_predictor=opening()).said == ""
    assert not (tmp_path / "out.partial").exists()


def test_a_receipt_of_an_earlier_version_is_added_to(order: Order, tmp_path: Path) -> None:
    file = tmp_path / "out.score.json"
    receipt = json.loads(file.read_text())
    del receipt["files"]
    for counter in ("kinds", "fell_back"):
        del receipt["counts"][counter]
    file.write_text(json.dumps(receipt))
    write(tmp_path / "in" / "c.csv", rows(20))
    score(order, open_predictor=opening())
    assert json.loads(file.read_text())["counts"]["rows"] == 80


def test_a_changed_file_is_refused_or_replaced_alone(order: Order, tmp_path: Path) -> None:
    write(tmp_path / "in" / "b.csv", rows(7))
    with pytest.raises(UsageError, match=r"out/b\.csv: is there already; its input is another now"):
        score(order, open_predictor=opening())
    fakes: list[Fake] = []
    score(replace(order, overwrite=True), open_predictor=keeping(fakes))
    assert asked(fakes) == Counter(row["text"] for row in rows(7))
    assert json.loads((tmp_path / "out.score.json").read_text())["counts"]["rows"] == 37


def test_a_file_that_somebody_altered_does_not_count_as_done(order: Order, tmp_path: Path) -> None:
    (tmp_path / "out" / "a.csv").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        score(order, open_predictor=opening())
    assert (tmp_path / "out" / "a.csv").read_text() == "mine"


def test_another_option_is_refused_as_before(order: Order, tmp_path: Path) -> None:
    write(tmp_path / "in" / "c.csv", rows(20))
    with pytest.raises(UsageError, match="is there already"):
        score(replace(order, prefix="p_"), open_predictor=opening())
    assert not (tmp_path / "out" / "c.csv").exists()


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("given", ["csv", "parquet"])
def test_new_and_changed_rows_by_their_key(
    bundle: Path, tmp_path: Path, ending: str, given: str
) -> None:
    source, out = tmp_path / f"i.{given}", tmp_path / f"o.{ending}"
    write(source, [*rows(40), {"id": "bad", "text": ""}])
    order = Order(str(source), str(out), str(bundle), window=10, key="id")
    score(order, open_predictor=opening())
    first = {row["id"]: row for row in read(out)}
    changed = rows(50)[5:]  # five are gone, ten are new
    changed[3] = changed[3] | {"text": "another text"}
    write(source, [*changed, {"id": "bad", "text": ""}])
    fakes: list[Fake] = []
    summary = score(order, open_predictor=keeping(fakes))
    new = [row["text"] for row in rows(50)[40:]]
    assert asked(fakes) == Counter([*new, "another text", ""])  # errors are tried again
    assert "34 as before" in summary.said
    assert (summary.counts.rows, summary.counts.errors) == (46, 1)
    found = read(out)
    assert [row["id"] for row in found] == [*(row["id"] for row in changed), "bad"]
    for row in found[:35]:
        if row["id"] != changed[3]["id"]:
            assert row == first[row["id"]]
    assert score(order, open_predictor=opening()).said == ""


def test_a_key_needs_its_columns_and_the_same_options(bundle: Path, tmp_path: Path) -> None:
    source, out = write(tmp_path / "i.csv", rows(10)), tmp_path / "o.csv"
    order = Order(str(source), str(out), str(bundle), key="id", drop=("text",))
    with pytest.raises(UsageError, match="--key no: is no column"):
        score(replace(order, key="no"), open_predictor=opening())
    score(order, open_predictor=opening())
    write(source, rows(12))
    with pytest.raises(UsageError, match="has no column text, so that nobody can tell"):
        score(order, open_predictor=opening())
    with pytest.raises(UsageError, match="was made with something else: prefix"):
        score(replace(order, prefix="p_"), open_predictor=opening())
    score(replace(order, overwrite=True, key=None, drop=()), open_predictor=opening())
    out.write_text(out.read_text().replace("xlt_label", "xlt_label "))
    write(source, rows(13))
    with pytest.raises(UsageError, match="is not as it was made"):
        score(replace(order, drop=()), open_predictor=opening())
    assert len(read(out)) == 12


def test_killed_it_goes_on_with_the_rows_it_had(bundle: Path, tmp_path: Path) -> None:
    source = tmp_path / "i.csv"
    order = Order(str(source), str(tmp_path / "o.csv"), str(bundle), window=10, key="id")
    whole = replace(order, out=str(tmp_path / "whole.csv"))
    for each in (order, whole):
        write(source, rows(40))
        score(each, open_predictor=opening())
    write(source, [row | {"text": "new " + row["text"]} if n % 2 else row
                   for n, row in enumerate(rows(120))])  # fmt: skip
    score(whole, open_predictor=opening())
    for _ in range(40):
        dying = Dying(load_labels(bundle))
        try:
            score(order, open_predictor=lambda *_, dying=dying: dying)
            break
        except Stop:
            continue
    assert (tmp_path / "o.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert len(read(tmp_path / "o.csv")) == 120
