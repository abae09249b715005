"""Recorded translations: each text once, nothing lost or doubled however a run ends, flaws kept out."""

from __future__ import annotations

import csv
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.xlt_serve.translation.engines import Faulty
from xlt_serve.errors import DataError, UsageError
from xlt_serve.translation.protocol import TranslationError
from xlt_serve.translation.recording import Quality, Recording, RowSet, SourceRow, table
from xlt_serve.translation.router import Engine, Router
from xlt_serve.translation.sanity import Flaw
from xlt_serve.translation.translation_log import Made, TranslationLog
from xlt_serve.translation.translators import Translators

MADE_BY = {"engine": {"shifty": {"kind": "test"}}}


def shifted(text: str) -> str:
    """A translation of a kind: other letters, as many."""
    return "".join(chr(ord(c) + 1) if c.isalpha() else c for c in text)


def rows_of(*texts: str | tuple[str, ...], split: str = "train") -> RowSet:
    rows = [
        SourceRow(str(number), (text,) if isinstance(text, str) else text)
        for number, text in enumerate(texts)
    ]
    return RowSet("qa", "qb", split, rows, "in.csv")


class Asked:
    """A recording in a folder, by an engine that notes what it is asked."""

    def __init__(self, out: Path, say: Any = lambda texts: [*map(shifted, texts)], **more: Any):
        self.engine = Faulty("shifty", say=say)
        engines = {"shifty": Engine(self.engine, batch=2), **more.pop("engines", {})}
        self.translators = Translators(Router(engines))
        self.recording = Recording(out, self.translators, MADE_BY, **more)

    def record(self, rows: RowSet) -> Quality:
        try:
            self.recording.check([rows])
            return self.recording.record(rows)[1]
        finally:
            self.translators.close()

    @property
    def texts(self) -> list[str]:
        return [text for call in self.engine.calls for text in call]


def read(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_a_text_is_translated_once_whatever_rows_and_splits_have_it(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    found = asked.record(rows_of("one goal", "two goals", "one goal", " one goal\n"))
    assert sorted(asked.texts) == ["one goal", "two goals"]
    assert (found.rows, found.texts, found.kept, found.share) == (4, 2, 4, 1.0)
    rows = read(tmp_path / "qa-qb.train.tsv")
    assert [row["text"] for row in rows] == ["pof hpbm", "uxp hpbmt", "pof hpbm", "pof hpbm"]
    assert [row["id"] for row in rows] == ["0", "1", "2", "3"]
    assert {row["engine"] for row in rows} == {"shifty"}
    assert rows[0]["source_hash"] == hashlib.blake2b(b"one goal", digest_size=8).hexdigest()
    again = Asked(tmp_path)
    again.record(rows_of("two goals", "three", split="dev"))
    assert again.texts == ["three"]
    report = json.loads((tmp_path / "translations.json").read_text())
    assert {name: entry["rows"] for name, entry in report.items()} == {
        "qa-qb.train.tsv": 4,
        "qa-qb.dev.tsv": 2,
    }


def test_a_pair_is_kept_if_both_its_texts_are(tmp_path: Path) -> None:
    say = {"bad": ""}
    asked = Asked(tmp_path, lambda texts: [say.get(text, shifted(text)) for text in texts])
    found = asked.record(rows_of(("one", "two"), ("one", "bad"), ("two", "one")))
    rows = read(tmp_path / "qa-qb.train.tsv")
    assert [(row["id"], row["text"], row["pair"]) for row in rows] == [
        ("0", "pof", "uxp"),
        ("2", "uxp", "pof"),
    ]
    assert (found.rows, found.kept, found.reasons) == (3, 2, {"empty": 1})


FLAWED = {
    "the first has nothing": "",
    "the second comes back as it was": "The second comes back, as it was!",
    "the third hangs": "go " * 20,
    "the fourth hangs as well": "とてもとてもとてもとてもとてもとても",
    "the fifth is broken": "tif � cspl",
    "the sixth is long": "x y z " * 100,
}
KINDS = ["empty", "copy", "repetition", "repetition", "broken", "length"]


def test_flaws_are_counted_and_kept_apart(tmp_path: Path) -> None:
    asked = Asked(tmp_path, lambda texts: [FLAWED.get(t, shifted(t)) for t in texts])
    found = asked.record(rows_of("good one", *FLAWED, "good two"))
    assert [row["id"] for row in read(tmp_path / "qa-qb.train.tsv")] == ["0", "7"]
    rejected = read(tmp_path / "qa-qb.train.rejected.tsv")
    assert [row["reason"].partition(":")[0] for row in rejected] == KINDS
    assert [row["text"] for row in rejected] == [*FLAWED]
    assert rejected[1]["translation"] == FLAWED["the second comes back as it was"]
    assert found.reasons == {"repetition": 2, "empty": 1, "copy": 1, "broken": 1, "length": 1}
    assert (found.kept, found.share, found.failed) == (2, 0.25, 0)
    again = Asked(tmp_path)
    assert again.record(rows_of("good one", *FLAWED, "good two")) == found
    assert again.texts == []  # what was turned down is not asked for again
    line = table([found])[1]
    assert "25.0%" in line
    assert "repetition 2, empty 1" in line


def test_a_flaw_of_one_engine_is_mended_by_the_next(tmp_path: Path) -> None:
    second = Engine(Faulty("second", say=lambda texts: [*map(shifted, texts)]))
    asked = Asked(tmp_path, lambda texts: texts, engines={"second": second})
    found = asked.record(rows_of("this is only a copy"))
    assert (found.kept, found.engines) == (1, {"second": 1})


@pytest.mark.parametrize("factor", [4.0, 0.2])
def test_an_absurd_length_is_one_that_is_not_usual_in_the_set(
    tmp_path: Path, factor: float
) -> None:
    """A ratio of .5 is usual here: 2 and .1 are not, whatever they would be elsewhere."""
    letters = random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=4000)
    texts = ["".join(letters[100 * n : 100 * n + 100]) for n in range(25)]
    halves = {text: shifted(text)[:50] for text in texts}
    halves[texts[3]] = "".join(letters[-round(factor * 50) :])
    asked = Asked(tmp_path, lambda given: [halves[text] for text in given])
    found = asked.record(rows_of(*texts))
    assert (found.kept, found.reasons) == (24, {"length": 1})
    assert found.length_ratio["p50"] == pytest.approx(0.5, abs=0.01)
    few = Asked(tmp_path / "few", lambda given: [halves[text] for text in given])
    assert few.record(rows_of(*texts[:10])).kept == 10  # too few to know what is usual


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, bytes]]:
    out = tmp_path_factory.mktemp("whole")
    Asked(out, lambda texts: [FLAWED.get(t, shifted(t)) for t in texts]).record(TO_DO)
    return (out / "qa-qb.log.jsonl").read_bytes(), contents(out)


TO_DO = rows_of("one", "two", *FLAWED, "größer", "one", "three")


def contents(out: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in out.iterdir() if not f.name.endswith(".log.jsonl")}


@given(st.data())
def test_killed_at_any_byte_a_run_goes_on_and_ends_as_if_it_had_not_been(
    tmp_path_factory: pytest.TempPathFactory,
    whole: tuple[bytes, dict[str, bytes]],
    data: st.DataObject,
) -> None:
    log, files = whole
    cut = data.draw(st.integers(0, len(log)))
    out = tmp_path_factory.mktemp("cut")
    (out / "qa-qb.log.jsonl").write_bytes(log[:cut])
    asked = Asked(out, lambda texts: [FLAWED.get(t, shifted(t)) for t in texts])
    asked.record(TO_DO)
    done = {json.loads(line)["text"] for line in log[:cut].split(b"\n")[1:-1]}
    assert sorted(asked.texts) == sorted({*TO_DO.texts()} - done)
    assert contents(out) == files
    lines = (out / "qa-qb.log.jsonl").read_bytes().splitlines()
    assert sorted(lines) == sorted(log.splitlines())


def test_an_engine_that_fails_loses_nothing_and_is_asked_again(tmp_path: Path) -> None:
    def dies(texts: list[str]) -> list[str]:
        if any("9" in text for text in texts):
            raise RuntimeError("out of memory")
        return [*map(shifted, texts)]

    texts = [f"text number {number}" for number in range(12)]  # 9 fails, and who goes with it
    first = Asked(tmp_path, dies)
    found = first.record(rows_of(*texts))
    assert found.failed in (1, 2)
    assert found.kept == 12 - found.failed
    assert "out of memory" in first.recording.failure
    second = Asked(tmp_path)
    assert second.record(rows_of(*texts)).kept == 12
    assert len(second.texts) == found.failed
    third = Asked(tmp_path / "other", dies)
    with pytest.raises(TranslationError, match="out of memory: nothing is translated any more"):
        third.record(rows_of("9"))
    assert not (tmp_path / "other" / "qa-qb.train.tsv").exists()


def test_what_is_not_ours_is_not_replaced(tmp_path: Path) -> None:
    theirs = tmp_path / "qa-qb.train.tsv"
    theirs.write_text("id\tengine\ttext\n")
    with pytest.raises(UsageError, match=r"qa-qb\.train\.tsv: was not made by this command"):
        Asked(tmp_path).record(rows_of("one"))
    assert theirs.read_text() == "id\tengine\ttext\n"
    Asked(tmp_path, overwrite=True).record(rows_of("one"))
    other = RowSet("qa", "qb", "train", rows_of("two").rows, "other.csv")
    with pytest.raises(UsageError, match=r"is of in\.csv; give another --out, or --overwrite"):
        Asked(tmp_path).record(other)
    with pytest.raises(UsageError, match="was begun with other translators"):
        TranslationLog(tmp_path / "qa-qb.log.jsonl", {"engine": {}})
    (tmp_path / "translations.json").write_text("[")
    with pytest.raises(DataError, match=r"translations\.json: is not JSON"):
        Asked(tmp_path).record(rows_of("one"))


def test_wrong_rows_and_pairs_are_refused_before_anything_is_translated(tmp_path: Path) -> None:
    doubled = [SourceRow("1", ("one",)), SourceRow("1", ("two",))]
    for rows, words in (
        (RowSet("qa", "qb", "train", doubled, "in.csv"), "id '1': is that of several texts in qa"),
        (RowSet("qa", "qb", "train", [SourceRow("a\tb", ("x",))], "in.csv"), "has a tab"),
        (RowSet("xx", "qb", "train", [SourceRow("1", ("x",))], "in.csv"), "xx-qb: is a pair that"),
    ):
        asked = Asked(tmp_path)
        with pytest.raises((DataError, UsageError), match=words):
            asked.record(rows)
        assert not asked.texts
    assert not list(tmp_path.iterdir())


def test_of_a_text_the_first_translation_stays(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    flaw = Flaw("copy", "is the text itself")
    with TranslationLog(file, {}) as log:
        log.add([Made("a", "1", "e"), Made("a", "2", "e"), Made("b\u2028", "", "e", 0.5, flaw)])
        log.add([Made("a", "3", "e")])
    again = TranslationLog(file, {})
    assert len(again) == 2
    assert again.get("a") == Made("a", "1", "e")
    assert again.get("b\u2028") == Made("b\u2028", "", "e", 0.5, flaw)
    file.write_text(file.read_text().replace('"text": "a"', '"txt": "a"'))
    with pytest.raises(DataError, match=r"line 2: can't be read"):
        TranslationLog(file, {})
