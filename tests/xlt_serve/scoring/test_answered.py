"""Each distinct text runs once, and no slice that was answered runs again after a kill."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.xlt_serve.scoring.fakes import Fake
from tests.xlt_serve.scoring.test_formats import read, write
from tests.xlt_serve.scoring.test_resume import Stop, rows
from xlt_serve import load
from xlt_serve.errors import DataError
from xlt_serve.files.window import MOST_BYTES, Position, Window
from xlt_serve.scoring import Order, answered, local, score
from xlt_serve.scoring.answer import Answerer
from xlt_serve.scoring.answered import AnsweredTexts, key_of
from xlt_serve.scoring.counts import Counts, Progress
from xlt_serve.scoring.journal import Place
from xlt_serve.scoring.local import ScoredWindow


def keeping(fakes: list[Fake], **options: Any) -> Any:
    """Like ``opening``, and what it opened can be asked later."""

    def open_fake(bundle: Any, _: Order) -> Fake:
        fakes.append(Fake(bundle.manifest.labels, **options))
        return fakes[-1]

    return open_fake


def asked(fakes: list[Fake]) -> Counter[object]:
    return Counter(item for fake in fakes for batch in fake.batches for item in batch)


@pytest.mark.parametrize("window", [4096, 40])
def test_ten_texts_three_hundred_times_run_as_ten(
    bundle: Path, tmp_path: Path, window: int
) -> None:
    texts = [f"the goal number {n % 10}" for n in range(3000)]
    source = write(tmp_path / "i.csv", [{"n": str(n), "text": t} for n, t in enumerate(texts)])
    fakes: list[Fake] = []
    order = Order(str(source), str(tmp_path / "o.jsonl"), str(bundle), window=window)
    counts = score(order, open_predictor=keeping(fakes)).counts
    assert asked(fakes) == Counter(texts[:10])
    assert (counts.rows, counts.errors) == (3000, 0)
    found = read(tmp_path / "o.jsonl")
    assert [row["text"] for row in found] == texts
    assert len({json.dumps([row[f"xlt_{n}"] for n in ("label", "tokens")]) for row in found}) <= 10


def test_the_answers_are_those_that_each_text_has_alone(bundle: Path, tmp_path: Path) -> None:
    """By the real model: repeats, an empty text, and one that is in other windows too."""
    texts = [*["Das Spiel endete unentschieden.", "", "The vaccine works."] * 4, "un train", ""] * 2
    source = write(tmp_path / "i.csv", [{"text": text} for text in texts])
    order = Order(str(source), str(tmp_path / "o.jsonl"), str(bundle), window=5)
    score(order)
    classifier = load(bundle)
    for text, row in zip(texts, read(tmp_path / "o.jsonl"), strict=True):
        alone = classifier.predict([text])[0].to_dict()
        assert row["xlt_label"] == alone["label"]
        assert row["xlt_error"] == alone["error"]
        assert (row["xlt_probabilities"] or {}) == pytest.approx(alone["probabilities"], abs=2e-6)


def test_votes_of_equal_texts_are_those_of_one(bundle: Path, tmp_path: Path) -> None:
    """Draws are keyed by the text and the seed, so nothing is lost by drawing once."""
    source = write(tmp_path / "i.csv", [{"text": t} for t in ("a goal", "bread", "a goal")])
    chosen = {"mode": "smoothed", "samples": 20, "seed": 3}
    score(Order(str(source), str(tmp_path / "o.jsonl"), str(bundle), settings=chosen))
    wanted = load(bundle).predict(["a goal", "bread", "a goal"], **chosen)
    for row, want in zip(read(tmp_path / "o.jsonl"), wanted, strict=True):
        assert row["xlt_votes"] == want.to_dict()["votes"]


def test_a_text_with_another_translation_is_another() -> None:
    assert key_of("a") == key_of("a")
    different = {
        key_of("a"), key_of("b"), key_of("a", "x"), key_of(("a", "b")), key_of(("b", "a")),
        key_of("a", ("x", "y")),
    }  # fmt: skip
    assert len(different) == 6
    assert key_of(None) == key_of(b"a") == key_of(("a", None)) == b""
    assert key_of("\ud800")


def test_memory_is_bounded_by_whole_windows() -> None:
    held = AnsweredTexts(most=5)
    for number in range(4):
        held.begin((0, 0, number), [key_of(f"{number}-{n}") for n in range(2)])
    assert held.find(key_of("0-0")) is held.find(key_of("1-1")) is None
    assert held.find(key_of("2-1")) is not None
    assert held.find(key_of("3-0")) is not None


class Dying(Fake):
    """Dies after some batches, in the middle of a window."""

    left = 3

    def predict(self, items: Any, **settings: Any) -> Any:
        if self.left == 0:
            raise Stop
        self.left -= 1
        return super().predict(items, **settings)


def test_what_was_answered_of_a_window_is_not_answered_again(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One window, killed in its middle: the slices that were done are kept."""
    monkeypatch.setattr(answered, "PATIENCE", 0.0)
    source = write(tmp_path / "i.csv", rows(900))
    order = Order(str(source), str(tmp_path / "o.csv"), str(bundle), workers=1)
    whole = Order(str(source), str(tmp_path / "whole.csv"), str(bundle), workers=1)
    fakes: list[Fake] = []
    score(whole, open_predictor=keeping(fakes))
    slices = len(fakes[0].batches)
    assert slices > 4

    dying = Dying(load_labels(bundle))
    with pytest.raises(Stop):
        score(order, open_predictor=lambda *_: dying)
    assert len(dying.batches) == 3
    fakes.clear()
    score(order, open_predictor=keeping(fakes))
    assert len(fakes[0].batches) == slices - 3
    assert (tmp_path / "o.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def load_labels(bundle: Path) -> list[str]:
    return list(json.loads((bundle / "bundle.json").read_text())["labels"])


def test_texts_known_before_a_kill_are_known_after_it(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else batches would be others than those of an uninterrupted run, and with them the answers."""
    monkeypatch.setattr("xlt_serve.scoring.journal.EVERY", 0.0)
    repeated = [{"text": f"the goal {n * 7 % 60} of {n % 9}"} for n in range(400)]
    source = write(tmp_path / "i.csv", repeated)
    whole = Order(str(source), str(tmp_path / "whole.csv"), str(bundle), window=25)
    score(whole, open_predictor=lambda found, _: Fake(found.manifest.labels))
    order = Order(str(source), str(tmp_path / "o.csv"), str(bundle), window=25)
    for _ in range(40):
        dying = Dying(load_labels(bundle))
        try:
            score(order, open_predictor=lambda *_, dying=dying: dying)
            break
        except Stop:
            continue
    assert (tmp_path / "o.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.parametrize("damage", [b"half of a li", b'00000000 [[1], ["00"], [{}]]\n'])
def test_what_is_damaged_is_not_believed(tmp_path: Path, damage: bytes) -> None:
    first, second = AnsweredTexts(tmp_path), AnsweredTexts(tmp_path)
    key = key_of("a")
    texts = first.begin((0, 0, 10), [key])
    first.put(texts, [0], [key], [{"label": "x", "error": None}])
    first.settle(Place(0, 0, Position(10, 1)))
    (file,) = tmp_path.glob("answers-*.jsonl")
    good = file.read_bytes()
    file.write_bytes(good + damage)
    second.recover(Place())
    assert file.read_bytes() == good
    assert second.known((0, 0, 10), [0]) == [{"label": "x", "error": None}]
    assert second.known((0, 0, 10), [0]) is None  # once is enough


def test_files_go_with_the_texts_that_are_forgotten(tmp_path: Path) -> None:
    held = AnsweredTexts(tmp_path, most=2)
    for number in range(1, 5):
        key = key_of(str(number))
        texts = held.begin((0, 0, number), [key])
        held.put(texts, [0], [key], [{"label": "x", "error": None}])
        held.settle(Place(0, 0, Position(number, number)))
        held.forget(Place(0, 0, Position(number, number)))
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        f"answers-00000-00000-{number:015}.jsonl" for number in (3, 4)
    ]
    again = AnsweredTexts(tmp_path, most=2)
    again.recover(Place(0, 0, Position(4, 4)))
    assert again.find(key_of("3")) is not None
    assert again.find(key_of("2")) is None


def test_a_failed_start_leaves_no_answers(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answered, "PATIENCE", 0.0)
    source = write(tmp_path / "i.csv", [{"text": ""}] * 30)
    with pytest.raises(DataError, match="30 of the first 30 rows: have errors"):
        score(
            Order(str(source), str(tmp_path / "o.csv"), str(bundle), window=30),
            open_predictor=lambda found, _: Fake(found.manifest.labels),
        )
    assert [file.name for file in tmp_path.iterdir()] == ["i.csv"]


def test_large_rows_are_not_held_by_the_thousand(bundle: Path) -> None:
    """Windows are bounded by bytes; so are those under way, however few rows they have."""
    taken: list[int] = []

    def pieces() -> Iterator[ScoredWindow]:
        for number in range(1, 9):
            taken.append(number)
            row = {"text": f"the goal {number}"}
            yield ScoredWindow(0, 0, Window([row], Position(number, number), size=MOST_BYTES))

    order = Order("i.csv", "o.csv", str(bundle), text="text")
    answerer = Answerer(Fake(load_labels(bundle)), order)
    for done, piece in enumerate(local.answered(pieces(), answerer, 1, rows=4096), 1):
        assert piece.window.end.offset == done
        assert len(taken) <= done + 1


def test_progress_moves_within_a_window() -> None:
    """A window of a slow mode takes minutes: its slices count as they are done."""
    stream = io.StringIO()
    now = iter(range(0, 1000, 11))
    progress = Progress(Counts(), stream, clock=lambda: float(next(now)))
    progress.start()
    ahead = Counts()
    progress.answered(ahead, 32, 500)
    progress.answered(ahead, 32, 500)
    assert [line.split("·")[0].strip() for line in stream.getvalue().splitlines()] == [
        "0% 32 rows",
        "0% 64 rows",
    ]
    progress.update(Counts(rows=64, tokens=1000), 1.0, ahead)
    assert "100% 64 rows" in stream.getvalue().splitlines()[-1]
    assert "64 rows" in progress.finish()
