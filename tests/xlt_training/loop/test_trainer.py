from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Trainer
from xlt_training.data import load_split, opened
from xlt_training.exporting import checkpoint as export
from xlt_training.exporting import trained
from xlt_training.loop import config, fisher, model, trainer
from xlt_training.loop.learner import Grouped, Learner, dev_score, tensors
from xlt_training.loop.report import curves, overview
from xlt_training.loop.types import Example
from xlt_training.methods.xmixup import XMixup

from xlt_serve import load
from xlt_serve.errors import ConfigError, DataError, UsageError
from xlt_serve.modes.vote import Vote
from xlt_serve.translation.recording import source_hash


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_it_learns_and_selects_on_source_dev(checkpoint: Path) -> None:
    metrics = json.loads((checkpoint / "metrics.json").read_text())
    assert metrics["selected_by"] == "source-dev"
    assert metrics["languages"]["en"]["accuracy"] > 0.7
    assert set(metrics["languages"]) == {"en", "de"}
    terms = [entry["term/cross_entropy"] for entry in metrics["log"] if "loss" in entry]
    assert terms[-1] < terms[0]
    best = max(entry["eval_score"] for entry in metrics["log"] if "eval_score" in entry)
    assert metrics["dev_score"] == best


def test_the_last_epoch_counts_where_nothing_selects(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a score that likes the first epoch best, which has learnt nothing yet."""
    found = {}
    for select in ("source-dev", "last"):
        scores = iter(range(100, 0, -1))
        monkeypatch.setattr(
            trainer, "dev_score", lambda seen, s=scores: dev_score(seen) | {"score": next(s)}
        )
        made = config.load(config_file, [f"select={select}"])
        metrics = trainer.train(made, tmp_path / select)
        accuracies = [e["eval_accuracy"] for e in metrics["log"] if "eval_accuracy" in e]
        found[select] = metrics["languages"]["en"]["accuracy"], metrics["dev_score"]
    assert accuracies[0] < accuracies[-1]
    assert found["source-dev"] == (pytest.approx(accuracies[0]), 100)
    assert found["last"] == (pytest.approx(accuracies[-1]), 101 - len(accuracies))


def test_each_line_names_its_stage_where_there_are_several(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = config.load(config_file, ["train.epochs=1", "train.head_first=1", "train.max_steps=1"])
    trainer.train(made, tmp_path / "run", judge=False)
    told = [line for line in capsys.readouterr().err.splitlines() if "epoch " in line]
    assert {line.partition(", epoch")[0] for line in told} == {
        "stage 1 of 2 (head alone)",
        "stage 2 of 2",
    }
    alone = config.load(config_file, ["train.max_steps=1"])
    trainer.train(alone, tmp_path / "alone", judge=False)
    assert "\nepoch " in capsys.readouterr().err


def test_dev_is_looked_at_every_so_many_steps(config_file: Path, tmp_path: Path) -> None:
    """And at the end. A run that was stopped between two looks goes on as if it had not been."""
    overrides = ["train.epochs=1", "train.evaluate_every=6"]
    made = config.load(config_file, overrides)
    whole = trainer.train(made, tmp_path / "whole")
    assert [e["step"] for e in whole["log"] if "eval_score" in e] == [6, 12, 16]
    assert [e["step"] for e in whole["log"] if "term/cross_entropy" in e] == [6, 12]
    step = Trainer.training_step

    def interrupted(self: Trainer, *args: object, **settings: object) -> torch.Tensor:
        if self.state.global_step == 8 and not (tmp_path / "stopped" / "once").exists():
            (tmp_path / "stopped" / "once").touch()
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *args, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.train(made, tmp_path / "stopped")
        again = trainer.train(made, tmp_path / "stopped")
    assert again["dev_score"] == whole["dev_score"]
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_rate_warms_up_over_steps_or_a_share(config_file: Path, tmp_path: Path) -> None:
    """The rates that the run logs, beside the lines that they should lie on."""
    rates = {}
    for name, value in (("steps", 4), ("share", 0.25)):
        made = config.load(
            config_file,
            ["train.max_steps=16", "train.evaluate_every=1", f"train.warm_up={value}"],
        )
        log = trainer.train(made, tmp_path / name, judge=False)["log"]
        rates[name] = [entry["learning_rate"] for entry in log if "learning_rate" in entry]
    expected = [3e-3 * min(step / 4, (16 - step) / 12) for step in range(16)]
    for found in rates.values():
        assert found == pytest.approx(expected)


def test_a_stage_hands_on_its_last_state_where_it_says_so(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a score that likes the first epoch best. The second stage hardly moves."""
    found = {}
    for select in ('select = "last"', ""):
        file = tmp_path / "stages.toml"
        file.write_text(
            config_file.read_text().partition("[[method]]")[0]
            + f"[[stage]]\n{select}\n[stage.train]\nepochs = 3\n[[stage.method]]\n"
            + 'name = "vanilla"\n[[stage]]\n[stage.train]\nlearning_rate = 1e-12\n'
            + 'max_steps = 1\nweight_decay = 0.0\n[[stage.method]]\nname = "vanilla"\n'
        )
        scores = iter(range(100, 0, -1))
        monkeypatch.setattr(
            trainer, "dev_score", lambda seen, s=scores: dev_score(seen) | {"score": next(s)}
        )
        made = config.load(file)
        assert [stage.select for stage in made.stages] == ["last" if select else None, None]
        log = trainer.train(made, tmp_path / f"run-{bool(select)}", judge=False)["log"]
        accuracies = [(e["stage"], e["eval_accuracy"]) for e in log if "eval_accuracy" in e]
        found[bool(select)] = accuracies[0][1], accuracies[2][1], accuracies[3][1]
    for last, (first_epoch, third_epoch, handed_on) in found.items():
        assert first_epoch != third_epoch
        assert handed_on == pytest.approx(third_epoch if last else first_epoch)


def test_noise_on_the_weights_comes_before_the_head_and_spares_what_is_frozen(
    config_file: Path, tmp_path: Path
) -> None:
    made = config.load(
        config_file,
        [
            "train.head_first=1",
            "train.freeze=0",
            "train.max_steps=1",
            "train.learning_rate=1e-12",
            "train.weight_decay=0.0",
            'method=[{name="noisy_tune", strength=0.5}]',
        ],
    )
    seen: list[bool] = []
    step = Trainer.training_step

    def watched(self: Trainer, *args: object, **settings: object) -> torch.Tensor:
        base = self.model.model.base  # type: ignore[union-attr]
        seen.append(torch.equal(base.encoder.layer[0].output.dense.weight, before))
        return step(self, *args, **settings)

    old = weights(Path(made.encoder))
    before = old["roberta.encoder.layer.0.output.dense.weight"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "training_step", watched)
        trainer.train(made, tmp_path / "run", judge=False)
    assert not any(seen)  # moved from the first step of the head on
    for name, value in weights(tmp_path / "run").items():
        if name.startswith("roberta.embeddings"):
            assert torch.equal(value, old[name]), name
        elif name.startswith("roberta.") and value.ndim == 2:
            width = 0.5 * old[name].std()
            assert (value - old[name]).std().item() == pytest.approx(
                width.item() / 12**0.5, rel=0.1
            )


def test_the_source_may_be_a_translated_train_set(
    config_file: Path, toy_data: Path, tmp_path: Path
) -> None:
    """English rows in German translation, with the labels that they had; judged on German dev."""
    made = config.load(config_file, ["task.source=de", "task.translated_from=en"])
    train_set, dev_set, _ = trainer.source_examples(made, opened(made.task))
    english = {e.id: e for e in load_split("sib200", toy_data, "train", "en")}
    assert len(train_set) == len(english) - 20  # the others were not translated
    assert {e.language for e in [*train_set, *dev_set]} == {"de"}
    for example in train_set:
        assert example.text == english[example.id].text.upper()
        assert example.label == english[example.id].label
    stale = tmp_path / "mt"
    stale.mkdir()
    rows = ["id\tengine\ttext\tsource_hash", f"{train_set[0].id}\ttoy\tTEXT\t{source_hash(('x',))}"]
    (stale / "en-de.train.tsv").write_text("\n".join(rows) + "\n")
    made.task.translations = str(stale)
    with pytest.raises(DataError, match="was translated from another text"):
        trainer.source_examples(made, opened(made.task))
    wrong = config.load(config_file, ["task.source=fr", "task.translated_from=en"])
    with pytest.raises(DataError, match=r"en-fr\.train\.tsv: is not there.*task\.translations"):
        trainer.train(wrong, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_weighted_vote_is_fitted_on_halves_and_served(
    config_file: Path, toy_data: Path, tmp_path: Path
) -> None:
    """A label that few rows have is in both models of halves, or the vote could not be counted."""
    method = 'method=[{name = "xmixup", layer = 1, vote = "weighted", k = "auto"}]'
    made = config.load(config_file, ["train.epochs=1", method])
    trainer.train(made, tmp_path / "run", judge=False)
    assert not (tmp_path / "run" / trainer.FOLDS).exists()
    fitted = model.described(tmp_path / "run").fitted["paired"]
    train = load_split("sib200", toy_data, "train", "en")
    assert fitted["examples"] == 2 * (len(train) - 20)  # the others were not translated
    bundle = export.export(tmp_path / "run", tmp_path / "bundle", export.Order(graphs=["paired"]))
    calibration = bundle.manifest.calibration["paired"]
    assert calibration == fitted
    classifier = load(bundle.path)
    text = "the goal was in our match"
    vote = Vote.fitted(calibration)
    same, other = classifier.predict(
        [text, text], mode="paired", language="de", translations=[text, "zz qq"]
    )
    assert same.pairing is not None
    assert same.pairing.agreement is not None
    assert same.pairing.agreement == pytest.approx(1, abs=1e-4)
    assert same.pairing.weight == pytest.approx(vote.weight(same.pairing.agreement), abs=1e-5)
    assert other.pairing is not None
    if other.pairing.agreement is None:
        assert other.pairing.reason is not None
        assert other.pairing.reason.code == "disagrees"
        plain = classifier.predict([text], language="de")[0]
        assert other.probabilities == pytest.approx(plain.probabilities, abs=1e-5)


def test_what_a_method_sets_beside_parameters_ends_with_its_stage(
    config_file: Path, encoders: dict[str, Path]
) -> None:
    built = model.build(str(encoders["bert"]), ["a", "b"], 32)
    attention = built.layers("test")[0].attention.self
    before = built.hf.config._attn_implementation, attention.dropout.p
    with trainer.as_before(built):
        built.hf.set_attn_implementation("eager")
        attention.dropout.p = 0.75
    assert (built.hf.config._attn_implementation, attention.dropout.p) == before


def test_the_halves_are_parts_by_id_with_all_labels(config_file: Path) -> None:
    made = config.load(config_file, [])
    whole, _, labels = trainer.source_examples(made, opened(made.task))
    parts = []
    for fold in ("0/2", "1/2"):
        half = config.load(config_file, [f"task.fold={fold}"])
        train_set, _, known = trainer.source_examples(half, opened(half.task))
        assert known == labels
        parts.append({example.id for example in train_set})
    assert parts[0].isdisjoint(parts[1])
    assert parts[0] | parts[1] == {example.id for example in whole}
    with pytest.raises(ConfigError, match=r"task\.fold is a part"):
        config.load(config_file, ["task.fold=half"])


def test_a_run_notes_the_fisher_that_it_read(
    config_file: Path, encoders: dict[str, Path], toy_data: Path, tmp_path: Path
) -> None:
    texts = (toy_data / "text" / "fr.txt").read_text().splitlines()
    folder, place = tmp_path / "fisher", str(encoders["xlm-roberta"])
    method = f'method=[{{name="ewc", fisher=["fr"], folder="{folder}"}}]'
    made = config.load(config_file, ["train.max_steps=1", method])
    with pytest.raises(DataError, match="make it with `xlt fisher ENCODER --languages fr"):
        trainer.train(made, tmp_path / "run")
    values = fisher.compute(place, texts, sentences=2)
    source = fisher.source_of(place, trainer.weights_digest(place), texts, sentences=2)
    file = fisher.save(folder, "fr", values, source)
    trainer.train(made, tmp_path / "run", judge=False)
    noted = json.loads((tmp_path / "run" / "run.json").read_text())
    assert noted["files"] == {str(file): trainer.digest_of(file)}
    fisher.save(folder, "fr", {name: 2 * value for name, value in values.items()}, source)
    with pytest.raises(UsageError, match=r"another config \(files\..*: '\w+', now '\w+'\)"):
        trainer.train(made, tmp_path / "run")


def test_a_run_of_the_first_edition_is_known_again(config_file: Path, tmp_path: Path) -> None:
    """Without the keys that came later; it meant what its checkpoints are still read as."""
    adapters = ["train.max_steps=1", 'method=[{name="adapters", norms=false}]']
    made, out = config.load(config_file, adapters), tmp_path / "run"
    metrics = trainer.train(made, out, judge=False)
    noted = json.loads((out / "run.json").read_text())
    del noted["stages"][0]["train"]["evaluate_every"]
    del noted["stages"][0]["methods"][0]["norms"]
    del noted["task"]["translated_from"]
    (out / "run.json").write_text(json.dumps(noted))
    assert trainer.train(made, out) == metrics
    now = config.load(config_file, ["train.max_steps=1", 'method=[{name="adapters"}]'])
    with pytest.raises(
        UsageError, match=r"another config \(stages\.0\.methods\.0\.norms: False, now True\)"
    ):
        trainer.train(now, out)


def test_what_is_left_is_no_pickle(checkpoint: Path) -> None:
    kinds = {file.suffix for file in checkpoint.iterdir() if file.is_file()}
    assert kinds <= {".safetensors", ".json", ".jinja", ".png"}


def test_a_run_leaves_a_picture_and_logs(checkpoint: Path) -> None:
    assert (checkpoint / "curves.png").read_bytes().startswith(b"\x89PNG")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(checkpoint / "logs"))
    events.Reload()
    assert "train/term/cross_entropy" in events.Tags()["scalars"]
    assert "eval/accuracy" in events.Tags()["scalars"]


def test_curves_put_stages_one_after_the_other() -> None:
    log = [
        {"stage": 0, "epoch": 1.0, "term/a": 3.0},
        {"stage": 0, "epoch": 2.0, "term/a": 2.0, "eval_accuracy": 0.5},
        {"stage": 1, "epoch": 1.0, "term/b": 1.0, "figure/ratio": 0.2},
    ]
    assert curves(log) == {
        "a": [(1.0, 3.0), (2.0, 2.0)],
        "dev accuracy": [(2.0, 0.5)],
        "b": [(3.0, 1.0)],
        "ratio": [(3.0, 0.2)],
    }


def test_dev_labels_that_training_lacks_are_named() -> None:
    train = [Example("a", "x", "en"), Example("b", "y", "en")]
    dev = {
        "de": [Example("c", "X", "de"), Example("d", "X", "de"), Example("e", "x", "de")],
        "en": [Example("f", "y", "en"), Example("g", "z", "en")],
    }
    told = overview(train, dev["en"], dev)[-1]
    assert told.startswith("! dev labels that training lacks: X 2 (de), z 1 (en); ")
    assert not any("lacks" in line for line in overview(train, train, {"en": train}))


def test_the_same_seed_gives_the_same_weights(
    checkpoint: Path, config_file: Path, tmp_path: Path
) -> None:
    trainer.train(config.load(config_file), tmp_path / "again")
    first, second = weights(checkpoint), weights(tmp_path / "again")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_resumed_run_equals_an_uninterrupted_one(
    checkpoint: Path, config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "stopped"
    step = Trainer.training_step

    def stop_in_the_fourth_epoch(self: Trainer, *args: object, **settings: object) -> torch.Tensor:
        if self.state.global_step == 55:
            raise KeyboardInterrupt
        return step(self, *args, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", stop_in_the_fourth_epoch)
        with pytest.raises(KeyboardInterrupt):
            trainer.train(config.load(config_file), out)
    assert not (out / "model.safetensors").exists()
    # A checkpoint that was being written when the power went is passed over.
    (out / "resume" / "stage-0" / "checkpoint-999").mkdir()
    trainer.train(config.load(config_file), out)
    first, second = weights(checkpoint), weights(out)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("grouped", "stop"), [(False, 17), (True, 17), (False, 14)])
def test_ctrl_c_keeps_the_part_of_an_epoch_that_was_done(
    config_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    grouped: bool,
    stop: int,
) -> None:
    """In the middle of an epoch, and in its last step."""
    step, done = Trainer.training_step, list[int]()

    def interrupted(self: Trainer, *args: object, **settings: object) -> torch.Tensor:
        done.append(self.state.global_step)
        if self.state.global_step == stop:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *args, **settings)

    made = config.load(
        config_file, ["train.epochs=3", f"train.group_by_length={str(grouped).lower()}"]
    )
    next_step = stop + 1
    orders: list[list[int]] = []
    order = Grouped.__iter__
    with monkeypatch.context() as patch:
        patch.setattr(
            Grouped, "__iter__", lambda s: iter(orders.append(list(order(s))) or orders[-1])
        )
        whole = trainer.train(made, tmp_path / "whole")
    assert len({*map(tuple, orders)}) == len(orders) == (3 if grouped else 0)  # each epoch another
    monkeypatch.setattr(Trainer, "training_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(made, tmp_path / "stopped")
    assert done == list(range(stop + 1))
    done.clear()
    capsys.readouterr()
    stop = -1
    again = trainer.train(made, tmp_path / "stopped")
    assert done[0] == next_step
    assert f"resuming at step {next_step}" in capsys.readouterr().err
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert again["dev_score"] == whole["dev_score"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_grouping_by_length_pads_less_and_resumes_as_well(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, padding, stop = Trainer.training_step, [], 10**9

    def watched(self: Trainer, *args: object, **settings: object) -> torch.Tensor:
        mask = args[1]["attention_mask"]  # type: ignore[index]
        padding.append(1 - mask.float().mean().item())
        if self.state.global_step == stop:
            raise KeyboardInterrupt
        return step(self, *args, **settings)

    def trained(name: str, *more: str) -> dict[str, torch.Tensor]:
        trainer.train(config.load(config_file, ["train.epochs=3", *more]), tmp_path / name)
        return weights(tmp_path / name)

    monkeypatch.setattr(Trainer, "training_step", watched)
    trained("random")
    shuffled = sum(padding) / len(padding)
    padding.clear()
    whole = trained("whole", "train.group_by_length=true")
    assert sum(padding) / len(padding) < 0.9 * shuffled  # toy texts are all short
    stop = 2 * (len(padding) // 3) + 3
    with pytest.raises(KeyboardInterrupt):
        trained("stopped", "train.group_by_length=true")
    stop = 10**9
    resumed = trained("stopped", "train.group_by_length=true")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_finished_run_is_not_repeated_and_another_config_is_refused(
    config_file: Path, tmp_path: Path
) -> None:
    # Not on ``checkpoint``: another process may have made it, on data and an encoder of its own.
    out, short = tmp_path / "run", ["train.max_steps=1"]
    trainer.train(config.load(config_file, short), out)
    before = (out / "model.safetensors").stat().st_mtime_ns
    metrics = trainer.train(config.load(config_file, short), out)
    assert metrics == json.loads((out / "metrics.json").read_text())
    assert (out / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(UsageError, match=r"another config \(seed: 0, now 5\).*another --out"):
        trainer.train(config.load(config_file, [*short, "seed=5"]), out)


def test_a_run_on_other_rows_is_refused(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it had ended or was stopped; one that did not record its rows is taken as it was."""
    rows = [f"the {'goal' if n % 2 else 'soup'} was good {n},{'ab'[n % 2]}" for n in range(40)]
    train, dev, out = tmp_path / "train.csv", tmp_path / "dev-de.csv", tmp_path / "run"
    train.write_text("text,label\n" + "\n".join(rows))
    dev.write_text("text,label\nsalt,a\nball,b\n")
    own = ["task.name=files", f"task.train={train}", f"task.dev.de={dev}", "train.max_steps=1"]
    made = config.load(config_file, own)
    metrics = trainer.train(made, out)
    noted = (out / "run.json").read_text()
    assert set(json.loads(noted)["data"]) == {"train", "dev de", "dev en"}
    capsys.readouterr()
    assert trainer.train(made, out) == metrics
    assert "was finished before, on the same rows; nothing is trained" in capsys.readouterr().err
    dev.write_text("text,label\nsalt,b\nball,a\n")
    with pytest.raises(UsageError, match=r"run on other rows \(dev de differ.*put the old rows"):
        trainer.train(made, out)
    train.write_text("text,label\n" + "\n".join(reversed(rows)))
    (out / "metrics.json").unlink()  # as if it had been stopped
    with pytest.raises(UsageError, match=r"other rows \(train, dev de, dev en differ.*--out"):
        trainer.train(made, out)
    old = json.loads(noted)
    del old["data"]
    (out / "run.json").write_text(json.dumps(old))
    assert trainer.train(made, out) != metrics
    assert json.loads((out / "run.json").read_text())["data"] != json.loads(noted)["data"]
    (out / "run.json").write_text(json.dumps(old))
    capsys.readouterr()
    trainer.train(made, out)
    assert "did not record its rows" in capsys.readouterr().err
    (out / "run.json").write_text(noted)
    dev.unlink()
    assert trainer.train(made, out)
    assert "its rows are not compared" in capsys.readouterr().err


def test_a_run_on_other_weights_of_the_same_name_is_refused(
    config_file: Path, encoders: dict[str, Path], tmp_path: Path
) -> None:
    encoder, out = tmp_path / "encoder", tmp_path / "run"
    shutil.copytree(encoders["xlm-roberta"], encoder)
    made = config.load(config_file, [f"encoder={encoder}", "train.max_steps=1"])
    trainer.train(made, out)
    noted = json.loads((out / "run.json").read_text())
    assert len(noted["encoder_weights"]) == 16
    trainer.train(made, out)
    values = {name: value + 0.1 for name, value in load_file(encoder / "model.safetensors").items()}
    save_file(values, encoder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match=r"another config \(encoder_weights: .*now"):
        trainer.train(made, out)
    (out / "metrics.json").unlink()  # as if it had been stopped
    with pytest.raises(UsageError, match=r"encoder_weights: "):
        trainer.train(made, out)
    # Checkpoints of before the weights were noted can be used, but not trained further.
    del noted["encoder_weights"], noted["data"]
    (out / "run.json").write_text(json.dumps(noted))
    assert model.load(out)[1].config == noted
    with pytest.raises(UsageError, match=r"encoder_weights: "):
        trainer.train(made, out)


def test_dev_texts_without_translation_are_not_paired_with_themselves(
    config_file: Path, toy_data: Path
) -> None:
    """``select = "all-dev"`` looks at languages that a method has no way of its own for."""
    torch.manual_seed(0)
    network = model.build(config.load(config_file).encoder, ["food", "sports", "weather"], 64)
    method = XMixup()
    method.attach(network)
    network.slots["mixup"].bias.data.fill_(20.0)  # to mix so much that it shows
    learner = Learner(network, [method], "en").eval()
    examples = [load_split("sib200", toy_data, "dev", lg)[n] for n in (0, 1) for lg in ("en", "de")]
    batch = network.batch(examples)
    with torch.no_grad():
        found = learner(**tensors(batch)).logits.softmax(-1)
        plain = network(batch).logits.softmax(-1)
        mixed = method.mix(network, batch, batch)
    paired = (mixed.target.logits.softmax(-1) + mixed.source.logits.softmax(-1)) / 2
    assert (plain - paired).abs().max() > 1e-3
    torch.testing.assert_close(found[[1, 3]], plain[[1, 3]])
    torch.testing.assert_close(found[[0, 2]], paired[[0, 2]])
    with torch.no_grad():  # batches of one kind alone
        for rows, expected in (([0, 2], paired), ([1, 3], plain)):
            one_kind = learner(**tensors(network.batch([examples[row] for row in rows])))
            torch.testing.assert_close(
                one_kind.logits.softmax(-1), expected[rows], atol=1e-5, rtol=1e-4
            )


def test_a_model_that_predicts_without_mixing_has_no_paired_graph() -> None:
    unmixed = XMixup(mixup_inference=False)
    assert trained.chosen_graphs([], [unmixed]) == ["plain"]
    assert trained.chosen_graphs(["perturbed"], [unmixed]) == ["plain", "perturbed"]
    with pytest.raises(UsageError, match=r"rules out with mixup_inference = false"):
        trained.chosen_graphs(["paired"], [unmixed])


def test_a_wrong_call_leaves_no_trace(config_file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        trainer.train(config.load(config_file, ["task.data=/nowhere"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_of_something_else_is_not_touched(config_file: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("precious")
    with pytest.raises(UsageError, match="is not empty and holds no run"):
        trainer.train(config.load(config_file), tmp_path)


def test_accumulation_equals_one_large_batch(config_file: Path, tmp_path: Path) -> None:
    """Without dropout, four batches of 5 accumulated have the gradient of one batch of 20."""
    common = ["train.epochs=1", "train.max_steps=1"]
    norms = []
    for name, more in (
        ("large", ["train.batch_size=20"]),
        ("small", ["train.batch_size=5", "train.accumulate=4"]),
    ):
        plain = tmp_path / f"encoder-{name}"
        made = model.build(config.load(config_file).encoder, ["a"], 64)
        made.base.config.hidden_dropout_prob = made.base.config.attention_probs_dropout_prob = 0.0
        made.base.save_pretrained(plain)
        made.tokenizer.save_pretrained(plain)
        metrics = trainer.train(
            config.load(config_file, [*common, *more, f"encoder={plain}"]), tmp_path / name
        )
        norms += [entry["grad_norm"] for entry in metrics["log"] if "grad_norm" in entry]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert len(norms) == 2


def test_frozen_layers_do_not_move(config_file: Path, tmp_path: Path) -> None:
    made = config.load(config_file, ["train.freeze=1", "train.max_steps=3"])
    trainer.train(made, tmp_path / "run")
    before, after = weights(Path(made.encoder)), weights(tmp_path / "run")
    moved = {
        name
        for name, value in after.items()
        if name.startswith("roberta.") and not torch.equal(value, before[name])
    }
    assert moved
    assert all(name.startswith("roberta.encoder.layer.1.") for name in moved)


def test_the_head_alone_comes_first(config_file: Path, tmp_path: Path) -> None:
    """It learns while the encoder stands still; then the stage of the config begins with it."""
    slow = ["train.learning_rate=1e-12", "train.weight_decay=0.0", "train.max_steps=3"]
    heads = {}
    for epochs in (0, 1):
        made = config.load(config_file, [*slow, f"train.head_first={epochs}"])
        assert [stage.train.learning_rate for stage in made.stages] == [1e-3, 1e-12][1 - epochs :]
        metrics = trainer.train(made, tmp_path / str(epochs))
        assert {entry["stage"] for entry in metrics["log"]} == set(range(1 + epochs))
        before, after = weights(Path(made.encoder)), weights(tmp_path / str(epochs))
        for name, value in after.items():
            if name.startswith("roberta."):
                assert torch.allclose(value, before[name], atol=1e-7), name
        heads[epochs] = after["classifier.out_proj.weight"]
    assert not torch.allclose(heads[0], heads[1], atol=1e-4)


def test_own_files(config_file: Path, toy_data: Path, tmp_path: Path) -> None:
    for split in ("train", "dev"):
        lines = (toy_data / "sib200" / f"{split}-en.tsv").read_text().splitlines()[1:]
        rows = [dict(zip(("n", "kind", "words"), line.split("\t"), strict=True)) for line in lines]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    overrides = [
        "task.name=files",
        f"task.train={tmp_path}/train.jsonl",
        f"task.dev={tmp_path}/dev.jsonl",
        "task.text=words",
        "task.label=kind",
        "train.epochs=1",
    ]
    trainer.train(config.load(config_file, overrides), tmp_path / "run")
    _, description = model.load(tmp_path / "run")
    assert description.labels == ["food", "sports", "weather"]
    with pytest.raises(DataError, match="no column 'topic'"):
        trainer.train(config.load(config_file, [*overrides, "task.label=topic"]), tmp_path / "run2")


def test_own_files_of_several_languages_get_what_named_tasks_get(
    config_file: Path, toy_data: Path, tmp_path: Path
) -> None:
    """Scores per language, selection on all of them, translations to mix in."""
    folder = toy_data / "sib200"
    overrides = [
        "task.name=files",
        f"task.train={folder}/train-en.tsv",
        f"task.dev={folder}/dev-{{language}}.tsv",
        "task.id=id" if "id" in (folder / "train-en.tsv").read_text().split("\n")[0] else "",
        f"task.translations={folder}/mt",
        "select=all-dev",
        "train.epochs=1",
        'method=[{name = "xmixup", layer = 1}]',
    ]
    made = config.load(config_file, [each for each in overrides if each])
    metrics = trainer.train(made, tmp_path / "run")
    named = trainer.train(
        config.load(config_file, ["train.epochs=1", "select=all-dev", overrides[-1]]),
        tmp_path / "named",
    )
    assert metrics["languages"] == named["languages"]
    assert len(metrics["languages"]) > 1
    assert metrics["dev_score"] == named["dev_score"]


def test_wrong_encoders(config_file: Path, tmp_path: Path, encoders: dict[str, Path]) -> None:
    with pytest.raises(DataError, match="is neither a folder with an encoder nor a name"):
        model.build(str(tmp_path / "none"), ["a", "b"], 64)
    (tmp_path / "gpt").mkdir()
    (tmp_path / "gpt" / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(DataError, match="is a gpt2 model; supported: bert"):
        model.build(str(tmp_path / "gpt"), ["a", "b"], 64)
    (tmp_path / "pickled").mkdir()
    config_json = (encoders["bert"] / "config.json").read_text()
    (tmp_path / "pickled" / "config.json").write_text(config_json)
    torch.save({}, tmp_path / "pickled" / "pytorch_model.bin")
    with pytest.raises(DataError, match="has no safetensors weights"):
        model.build(str(tmp_path / "pickled"), ["a", "b"], 64)


def test_a_folder_without_description_is_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a finished checkpoint"):
        model.load(tmp_path)


def test_bfloat16_trains(config_file: Path, tmp_path: Path) -> None:
    metrics = trainer.train(
        config.load(config_file, ["train.precision=bf16", "train.max_steps=3"]), tmp_path / "run"
    )
    assert weights(tmp_path / "run")["classifier.dense.weight"].dtype == torch.float32
    assert metrics["dev_score"] > 0
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="needs a GPU"):
            trainer.train(config.load(config_file, ["train.precision=fp16"]), tmp_path / "half")


@pytest.mark.slow
def test_two_processes_train_as_one(config_file: Path, tmp_path: Path) -> None:
    """torchrun on CPU: two halves of a batch have the gradient of the whole, to dropout."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["-m", "xlt_serve.cli", "train", str(config_file), "train.batch_size=15"]
    done = subprocess.run(
        [*command, "train.epochs=4", "--out", str(tmp_path / "two")],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "two" / "metrics.json").read_text())
    assert max(entry["step"] for entry in metrics["log"]) == 4 * 8  # 240 examples / (2 × 15)
    assert done.stdout.count("checkpoint:") == 1
    assert not (tmp_path / "two" / "resume").exists()
