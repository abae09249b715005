"""The benchmark of prediction with translations, on toy data and a tiny encoder: does it add up?"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import paired as benchmark
from benchmarks import paired_cost, paired_damage, paired_report
from xlt_serve.bundle import Bundle


@pytest.fixture
def data(toy_data: Path, tmp_path: Path) -> Path:
    """The toy data with recorded translations of dev and test: all but the first three sentences."""
    folder = tmp_path / "data"
    shutil.copytree(toy_data, folder)
    for split in ("dev", "test"):
        lines = (folder / "sib200" / f"{split}-en.tsv").read_text().splitlines()[1:]
        rows = ["id\tengine\ttext"]
        rows += [f"{line.split(chr(9))[0]}\ttoy\t{line.split(chr(9))[2]}" for line in lines[3:]]
        (folder / "sib200" / "mt" / f"de-en.{split}.tsv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.mark.slow
def test_runs_are_kept_and_compared(
    data: Path, encoders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "paired.json"
    arguments = ["paired", "--data", data, "--encoder", encoders["xlm-roberta"], "--seeds", "2"]
    arguments += ["--runs", "vanilla,xmixup,fixed_ratio", "--work", tmp_path / "work", "--no-cost"]
    arguments += ["--out", out, "--override", "train.epochs=0.5", "train.learning_rate=1e-3"]
    monkeypatch.setattr(sys, "argv", [str(argument) for argument in arguments])
    shallow = {
        name: (file, [*changes, *(["method.xmixup.layer=1"] if file == "xmixup" else [])])
        for name, (file, changes) in benchmark.RUNS.items()
    }
    monkeypatch.setattr(benchmark, "RUNS", shallow)  # the encoder has two layers
    benchmark.main()
    results = json.loads(out.read_text())
    assert results["languages"] == {"de": {"split": "test", "items": 27}}
    assert set(results["scores"]) == {
        "plain", "translate_test", "paired", "no_mixup_inference", "fixed_ratio",
    }  # fmt: skip
    kept = json.loads((tmp_path / "work" / "xmixup-1" / "evaluated.json").read_text())
    right = kept["correct"]["paired none"]["de"]
    assert results["scores"]["paired"]["mean"][1] == pytest.approx(np.mean(right))
    assert len(kept["ratios"]["other sentence"]["de"]) == 27
    claim = results["differences"]["paired - plain"]["rows"]["mean"]
    assert claim["low"] <= claim["mean"] <= claim["high"]
    gap = np.mean(results["scores"]["paired"]["mean"]) - np.mean(results["scores"]["plain"]["mean"])
    assert claim["mean"] == pytest.approx(gap)
    assert results["by_split"] == {  # there is no other split here
        "test": {name: told["rows"]["mean"] for name, told in results["differences"].items()}
    }
    assert results["damage"]["fixed_ratio"]["drop 50 %"]["ratio"] == pytest.approx(0.5)
    assert results["damage"]["fixed_ratio"]["drop 50 %"]["separates"] == 0.5
    assert "| **mean** |" in out.with_suffix(".md").read_text()
    assert out.with_suffix(".png").stat().st_size > 1000
    before = (tmp_path / "work" / "vanilla-0" / "evaluated.json").stat().st_mtime_ns
    monkeypatch.setattr(sys, "argv", [str(a) for a in [*arguments, "--languages", "de"]])
    benchmark.main()  # nothing is trained again
    assert (tmp_path / "work" / "vanilla-0" / "evaluated.json").stat().st_mtime_ns == before
    monkeypatch.setattr(sys, "argv", [str(a) for a in [*arguments, "--languages", "de,xx"]])
    with pytest.raises(SystemExit):
        benchmark.main()


def test_every_recorded_language_is_evaluated_whichever_are_reported(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are not kept: a language that was left out would have to be trained for again."""
    for split in ("dev", "test"):
        shutil.copy(data / "sib200" / f"{split}-de.tsv", data / "sib200" / f"{split}-fr.tsv")
        mt = data / "sib200" / "mt"
        shutil.copy(mt / f"de-en.{split}.tsv", mt / f"fr-en.{split}.tsv")
    asked: list[list[str]] = []

    def one_run(options: object, name: str, seed: int, items: dict[str, Any]) -> dict[str, Any]:
        asked.append(sorted(items))
        right = {language: [True] * len(mine.items) for language, mine in items.items()}
        ways = ["plain", *(f"translate_test {damage}" for damage in paired_damage.DAMAGES)]
        return {"correct": dict.fromkeys(ways, right)}

    monkeypatch.setattr(benchmark, "one_run", one_run)
    monkeypatch.setattr(benchmark, "before_training", lambda *_: {})
    monkeypatch.setattr(benchmark.trainer, "weights_digest", lambda _: "abc")
    out = tmp_path / "paired.json"
    arguments = ["paired", "--data", data, "--seeds", 1, "--runs", "vanilla", "--no-cost"]
    arguments += ["--out", out, "--languages", "fr"]
    monkeypatch.setattr(sys, "argv", [str(argument) for argument in arguments])
    benchmark.main()
    assert asked == [["de", "fr"]]
    assert list(json.loads(out.read_text())["languages"]) == ["fr"]


def test_the_picture_has_accuracy_and_ratio() -> None:
    def row(accuracy: float, **more: float) -> dict[str, dict[str, float]]:
        return {damage: {"accuracy": accuracy, **more} for damage in paired_damage.DAMAGES}

    results = {
        "scores": {"plain": {"mean": [0.5]}, "paired": {"mean": [0.6]}},
        "damage": {"xmixup": row(0.6, ratio=0.25), "translate_test": row(0.4)},
    }
    _, middle, right = paired_report.picture(results).axes
    assert len(middle.lines) == 2
    [line] = right.lines
    assert list(line.get_ydata()) == [0.25] * len(paired_damage.DAMAGES)
    assert "λ" in right.get_ylabel()


def test_damage_is_the_same_for_everyone_and_as_strong_as_it_says() -> None:
    texts = [f"{' '.join(f'word{n}{i}' for i in range(40))}" for n in range(50)]
    assert paired_damage.spoilt(texts, "none") == texts
    for share in (25, 50, 75):
        once = paired_damage.spoilt(texts, f"drop {share} %")
        assert once == paired_damage.spoilt(texts, f"drop {share} %")
        kept = sum(len(text.split()) for text in once) / (50 * 40)
        assert kept == pytest.approx(1 - share / 100, abs=0.04)
    others = paired_damage.spoilt(texts, "other sentence")
    assert sorted(others) == sorted(texts)
    assert all(a != b for a, b in zip(texts, others, strict=True))


def test_separation_is_the_area_under_the_roc() -> None:
    generator = np.random.default_rng(0)
    whole, bad = generator.normal(1, 1, 60), generator.normal(0, 1, 40)
    by_pairs = np.mean(whole[:, None] > bad[None, :])
    assert paired_damage.separation(whole, bad) == pytest.approx(by_pairs)
    assert paired_damage.separation(np.full(7, 0.3), np.full(5, 0.3)) == 0.5  # λ that never changes
    whole, bad = generator.integers(0, 4, 60), generator.integers(0, 3, 40)
    above, equal = whole[:, None] > bad[None, :], whole[:, None] == bad[None, :]
    assert paired_damage.separation(whole, bad) == pytest.approx(np.mean(above + equal / 2))


def test_graphs_are_timed_in_turns(graph_bundles: dict[str, Bundle]) -> None:
    place = graph_bundles["xlm-roberta"].path
    out = paired_cost.graph_ratios(place, rounds=1, shapes=((1, 8), (2, 16)))
    assert set(out) == {"1x8", "2x16"}
    for row in out.values():
        assert row["ratio"] == pytest.approx(row["paired_ms"] / row["plain_ms"])
