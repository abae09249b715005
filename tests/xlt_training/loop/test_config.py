from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from xlt_training.data import load_split
from xlt_training.loop import config, fisher
from xlt_training.loop import model as models
from xlt_training.loop.method import Context, compose
from xlt_training.loop.trainer import freeze_bottom
from xlt_training.loop.types import Example
from xlt_training.methods import METHODS
from xlt_training.methods.code_switch import CodeSwitch
from xlt_training.methods.ewc import EWC
from xlt_training.methods.isotropy import Isotropy
from xlt_training.methods.l2_anchor import L2Anchor
from xlt_training.methods.xmixup import XMixup

from tests import ROOT
from xlt_serve.errors import ConfigError, DataError

CONFIGS = sorted((ROOT / "training" / "xlt_training" / "configs").rglob("*.toml"))


def test_overrides_take_toml_values_and_bare_words(config_file: Path) -> None:
    made = config.load(config_file, ["train.epochs=2", "seed=7", "task.source=de", "encoder=small"])
    assert (made.train.epochs, made.seed, made.task.source, made.encoder) == (2.0, 7, "de", "small")
    assert made.described()["stages"][0]["methods"] == [{"name": "vanilla"}]
    assert made.stages[0].train.epochs == 2.0


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(
        """
encodr = "x"
seed = "one"
[task]
name = "sib20"
[train]
epochs = true
batch_size = 1.5
learning_rate = 0
[[method]]
name = "vanila"
[[method]]
name = "vanilla"
strength = 3
"""
    )
    with pytest.raises(ConfigError) as caught:
        config.load(file, ["nonsense", "train.warm_up=2"])
    text = str(caught.value)
    for part in (
        "encodr is not a known key, did you mean 'encoder'?",
        "encoder is required",
        "seed must be int, was: 'one'",
        "train.epochs must be float, was: True",
        "train.batch_size must be int, was: 1.5",
        "method[0].name = 'vanila' is unknown, did you mean 'vanilla'?",
        "method[1].strength is not a known key",
        "override 'nonsense' is not key=value",
    ):
        assert part in text
    assert "\n" not in text


def test_values_out_of_range_and_unknown_tasks(config_file: Path) -> None:
    overrides = [
        "train.learning_rate=0",
        "train.warm_up=2",
        "train.max_length=1",
        "task.name=sib20",
    ]
    with pytest.raises(ConfigError) as caught:
        config.load(config_file, overrides)
    assert len(caught.value.problems) == 4
    assert "did you mean 'sib200'?" in str(caught.value)
    with pytest.raises(ConfigError, match=r"task\.train is required where task.name is 'files'"):
        config.load(config_file, ["task.name=files"])
    for wrong, says in (
        ("seed=-1", "seed must be from 0"),
        ("train.learning_rate=nan", "learning_rate must be positive"),
        ("train.epochs=inf", "epochs must be positive"),
        ("train.max_steps=0", "max_steps must be positive"),
        ("stage=[]", "one or more tables"),
        ('method=[{name=["x"]}]', r"method\[0\].name is required"),
        ('method=[{name="word_swap",p=7.0}]', "p must be between 0 and 1"),
    ):
        with pytest.raises(ConfigError, match=says):
            config.load(config_file, [wrong])
    with pytest.raises(ConfigError, match="goes into a value that is not a table"):
        config.load(config_file, ["encoder.deep=1"])


def test_files_that_are_no_config(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        config.load(tmp_path / "none.toml")
    file = tmp_path / "broken.toml"
    file.write_text("encoder = ")
    with pytest.raises(ConfigError, match="is not TOML"):
        config.load(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        config.load(file)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_every_config_that_ships_is_valid(file: Path) -> None:
    made = config.load(file)
    assert made.task.name == file.parent.name
    assert all(type(m) in METHODS.values() for stage in made.stages for m in stage.methods)
    assert file.read_text().startswith("# xlt train")


@pytest.fixture(scope="module")
def stocked(
    toy_data: Path, encoders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Word lists, recorded translations of every task's toy texts, and a Fisher."""
    folder = tmp_path_factory.mktemp("stocked")
    shutil.copytree(toy_data / "lexicons", folder / "lexicons")
    for task in {file.parent.name for file in CONFIGS}:
        rows = toy_examples(task, toy_data)
        (folder / task / "mt").mkdir(parents=True)
        lines = ["id\ttext\tpair"]
        lines += [f"{e.id}\t{e.text.upper()}\t{(e.pair or '').upper()}" for e in rows]
        (folder / task / "mt" / "en-de.train.tsv").write_text("\n".join(lines) + "\n")
    texts = (toy_data / "text" / "fr.txt").read_text().splitlines()[:2]
    fisher.save(folder, "fr", fisher.compute(str(encoders["xlm-roberta"]), texts))
    return folder


def toy_examples(task: str, toy_data: Path) -> list[Example]:
    alike = "xnli" if task in ("xnli", "pawsx") else "sib200"
    return load_split(alike, toy_data, "train", "en")[:6]


def test_overrides_reach_methods_and_stages() -> None:
    folder = ROOT / "training" / "xlt_training" / "configs" / "sib200"
    made = config.load(folder / "l2_anchor.toml", ["method.l2_anchor.strength=0.5"])
    assert [m.strength for m in made.stages[-1].methods if isinstance(m, L2Anchor)] == [0.5]
    two = [
        "method.code_switch.p=0.25",
        "stage.1.train.epochs=1",
        "stage.0.method.isotropy.weight=1",
    ]
    _, first, second = config.load(folder / "isozcl.toml", two).stages  # the head comes before them
    assert (first.train.epochs, second.train.epochs) == (4, 1)
    assert second.methods == [CodeSwitch(p=0.25)]
    assert first.methods == [Isotropy(weight=1)]
    for wrong in ("method.ear.alpha=1", "stage.2.train.epochs=1", "method.p=1", "seed.x=1"):
        with pytest.raises(ConfigError, match="goes into a value that is not a table"):
            config.load(folder / "isozcl.toml", [wrong])


@pytest.mark.parametrize("file", CONFIGS, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_every_config_that_ships_has_a_loss(
    file: Path, stocked: Path, toy_data: Path, encoders: dict[str, Path]
) -> None:
    """What it says of its methods can be built and learnt from, stage after stage."""
    made = config.load(file)
    torch.manual_seed(0)
    source = toy_examples(made.task.name, toy_data)
    labels = sorted({example.label for example in source})
    model = models.build(str(encoders["xlm-roberta"]), labels, 32)
    pretrained = {name: p.detach().clone() for name, p in model.encoder_parameters()}
    known: set[type] = set()
    for stage in made.stages:
        context = Context(
            made.task.name, stocked, "en", 0, 10, pretrained, prepared=frozenset(known)
        )
        examples = source
        for method in stage.methods:
            if isinstance(method, EWC):
                method.folder = str(stocked)
            if isinstance(method, XMixup):
                method.layer = min(method.layer, model.depth)  # the tiny encoder has few
            examples = list(method.augment(examples, context))
            if type(method) not in known:
                method.attach(model)
        batch = model.batch(examples[-4:])
        model.requires_grad_(True)
        freeze_bottom(model, stage.train.freeze)
        for method in stage.methods:
            method.prepare(model, [batch], context)
        model.train()
        loss = compose(stage.methods)(model, batch)
        assert torch.isfinite(loss.total)
        assert all(value.requires_grad for value in loss.terms.values())
        known |= {type(method) for method in stage.methods}
