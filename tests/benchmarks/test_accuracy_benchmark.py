"""The comparison of methods, from the call to the table, on toy data and a tiny encoder."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from xlt_training.data import load_split
from xlt_training.loop import trainer

from benchmarks import accuracy, cost
from benchmarks.runs import kept
from tests.xlt_training.contexts import context_of


@pytest.fixture
def encoder(encoders: dict[str, Path], tmp_path: Path) -> Path:
    """One that may be changed."""
    return Path(shutil.copytree(encoders["xlm-roberta"], tmp_path / "encoder"))


def call(monkeypatch: pytest.MonkeyPatch, encoder: Path, data: Path, *more: object) -> Path:
    out = encoder.parent / "accuracy.json"
    arguments = ["accuracy", "--data", data, "--encoder", encoder, "--seeds", 1, "--out", out]
    arguments += ["--work", encoder.parent / "work", "--override", "train.max_steps=2"]
    arguments += ["xmixup:method.xmixup.layer=1", *more]  # the encoder has two
    monkeypatch.setattr(sys, "argv", [str(argument) for argument in arguments])
    accuracy.main()
    return out


@pytest.mark.slow
def test_from_the_call_to_the_table(
    encoder: Path,
    toy_data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = call(monkeypatch, encoder, toy_data, "--methods", "xmixup,isozcl,ewc,supervised")
    results = json.loads(out.read_text())
    assert list(results["methods"]) == ["vanilla", "xmixup", "isozcl", "ewc", "supervised"]
    assert results["splits"] == {"de": "test", "en": "test"}
    assert results["encoder_weights"] == trainer.weights_digest(str(encoder))
    assert results["runs"]["ewc"][0]["overrides"] == ["train.max_steps=2"]
    table = out.with_suffix(".md").read_text()
    assert "| supervised upper bound |" in table
    # The head first, as long as configured, then its two stages; 240 examples, 16 in a batch.
    assert "| isozcl | 2 + 0.133 + 0.133 (30 + 2 + 2) |" in table
    assert "Overrides of the configs, METHOD-SEED:" in table
    assert "train.max_steps=2 method.xmixup.layer=1" in table
    assert "±" not in table.split("|---")[1]  # of one seed
    assert out.with_suffix(".png").stat().st_size > 1000

    with monkeypatch.context() as patch:  # nothing is trained again
        patch.setattr(trainer, "train", lambda *_, **__: pytest.fail("trained again"))
        call(patch, encoder, toy_data, "--methods", "ewc")
    assert "removed" not in capsys.readouterr().out

    values = load_file(encoder / "model.safetensors")
    save_file(
        {k: 1.1 * v for k, v in values.items()}, encoder / "model.safetensors", {"format": "pt"}
    )
    before = results["encoder_weights"]
    again = json.loads(call(monkeypatch, encoder, toy_data, "--methods", "vanilla").read_text())
    assert again["encoder_weights"] != before
    said = capsys.readouterr().out
    assert said.count("removed, to train again") == 1
    kept = json.loads((encoder.parent / "work" / "sib200-vanilla-0" / "correct.json").read_text())
    assert kept["stamp"]["run"]["encoder_weights"] == again["encoder_weights"]


def test_an_unknown_method_is_refused_before_anything_is_trained(
    encoder: Path, toy_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        call(monkeypatch, encoder, toy_data, "--methods", "vanila")
    assert not (encoder.parent / "work").exists()


def test_what_is_kept_is_read_only_under_its_stamp(tmp_path: Path) -> None:
    folder, stamp = tmp_path / "run", {"run": {"seed": 0}, "scored": {"en": ["dev", 3]}}
    file = folder / "correct.json"
    assert kept(file, stamp) is None
    folder.mkdir()
    (folder / trainer.RUN).write_text('{"seed": 0}')
    assert kept(file, stamp) is None
    assert folder.exists()  # begun and stopped: it goes on
    file.write_text(json.dumps({"stamp": stamp, "correct": {}}))
    assert kept(file, stamp) == {"stamp": stamp, "correct": {}}
    assert kept(file, stamp | {"scored": {"en": ["test", 3]}}) is None
    assert not folder.exists()
    folder.mkdir()
    file.write_text('{"en": [true, false]}')  # as an older version left it
    assert kept(file, stamp) is None
    assert not folder.exists()
    folder.mkdir()
    (folder / trainer.RUN).write_text('{"seed": 1}')
    assert kept(file, stamp) is None
    assert not folder.exists()


def test_the_table_says_who_was_trained_how() -> None:
    def row(*seeds: float) -> dict[str, Any]:
        return {"seeds": list(seeds), "against_vanilla": {"p": 0.5}}

    def run(epochs: int, *overrides: str) -> dict[str, Any]:
        return {"stages": [{"epochs": epochs, "steps": 1000 * epochs}], "overrides": [*overrides]}

    columns = {column: row(0.5, 0.6) for column in ("all", "target", "distant", "en", "sw")}
    results = {
        "task": "toy",
        "encoder": "tiny",
        "encoder_weights": "abc",
        "methods": {"vanilla": columns, "ear": columns},
        "groups": {"all": ["en", "sw"], "target": ["sw"], "distant": ["sw"]},
        "splits": {"en": "dev", "sw": "dev"},
        "runs": {"vanilla": [run(5), run(5)], "ear": [run(2, "train.epochs=2"), run(5)]},
    }
    table = accuracy.markdown(results)
    assert "- as configured: vanilla-0, vanilla-1, ear-1" in table
    assert "- train.epochs=2: ear-0" in table
    assert "| vanilla | 5 (5000) |" in table
    assert "| ear | 2 (2000) |" in table
    assert table.count("55.0 ± 7.1") == 10  # √(2 · .05²), for each language too
    assert "Indo-European:\nsw." in table


def test_weights_that_change_meanwhile_are_noticed() -> None:
    def run(digest: str) -> dict[str, Any]:
        return {"stamp": {"run": {"encoder_weights": digest}}}

    assert accuracy.one_encoder("small", {"vanilla": [run("a")], "ear": [run("a")]}) == "a"
    with pytest.raises(SystemExit, match="small: its weights changed during the benchmark"):
        accuracy.one_encoder("small", {"vanilla": [run("a")], "ear": [run("b")]})


def test_an_override_may_be_for_one_method() -> None:
    given = ["train.epochs=3", "ear:train.max_steps=9", "encoder=a:b", "isozcl:train.epochs=1"]
    assert accuracy.overrides_of("vanilla", given) == ["train.epochs=3", "encoder=a:b"]
    assert accuracy.overrides_of("ear", given)[2:] == ["train.max_steps=9"]


@pytest.mark.parametrize(
    ("name", "forward", "backward", "growth"),
    [("vanilla", 1, 1, 1), ("adversarial", 2, 2, 1), ("translate_train", 1, 1, 460 / 240)],
)
def test_passes_are_counted_both_ways(
    name: str, forward: int, backward: int, growth: float, encoder: Path, toy_data: Path
) -> None:
    source = load_split("sib200", toy_data, "train", "en")
    context = context_of(toy_data, steps=10)
    step = cost.Step(cost.make(name, toy_data), str(encoder), source, context, 4)
    row = step.described(1.0)
    assert (row["encoder_passes"], row["backward_passes"]) == (forward, backward)
    assert row["examples_over_vanilla"] == pytest.approx(growth)
