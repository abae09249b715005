from __future__ import annotations

import itertools
import json
import shutil
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from xlt_training.data import TaskConfig, load_split
from xlt_training.loop import config, fisher, presets, recipes
from xlt_training.loop import model as models
from xlt_training.loop.method import compose
from xlt_training.loop.settings import TrainConfig
from xlt_training.loop.trainer import freeze_bottom
from xlt_training.loop.types import Example
from xlt_training.methods.adapters import Adapters
from xlt_training.methods.adversarial import Adversarial
from xlt_training.methods.code_switch import CodeSwitch
from xlt_training.methods.ear import EAR
from xlt_training.methods.ewc import EWC
from xlt_training.methods.isobn import IsoBN
from xlt_training.methods.isotropy import Isotropy
from xlt_training.methods.l2_anchor import L2Anchor
from xlt_training.methods.noise import Noise
from xlt_training.methods.noisy_tune import NoisyTune
from xlt_training.methods.synonyms import Synonyms
from xlt_training.methods.xmixup import XMixup

from tests.xlt_training.contexts import context_of
from xlt_serve.errors import ConfigError, DataError

RESOLVED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "resolved_configs.json").read_text()
)
"""What the configs said when there was a file for each task and method: vanilla's values by dotted
key, and for the others which of them differ."""
NEWER: dict[type, dict[str, Any]] = {
    EAR: {"copies": 1, "pairs": ""},
    Adapters: {"norms": True},
    IsoBN: {"at": "pooled"},
    XMixup: {
        "gate": 0.0,  # it was -4.0
        "gate_rate": 100.0,
        "entropy": "states",
        "agreement": False,
        "vote": "paper",
    },
}
"""What methods have got or changed since."""
NAMED = [(task, name) for task in RESOLVED for name in RESOLVED[task]]


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
        "train.warm_up=2.5",
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
        ("train.evaluate_every=-1", "evaluate_every must be steps"),
        ('stage=[{select="best"}]', r"stage\[0\]\.select must be 'last' or left out, was: 'best'"),
        ('stage=[{selct="last"}]', "did you mean 'select'"),
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
    with pytest.raises(DataError, match=r"is a table, not a config.*xlt init .*mine\.csv"):
        config.load(tmp_path / "mine.csv")
    file = tmp_path / "broken.toml"
    file.write_text("encoder = ")
    with pytest.raises(ConfigError, match="is not TOML"):
        config.load(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        config.load(file)


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Every value of nested tables and lists of tables by its dotted key."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {prefix[:-1]: value}
    return {k: v for key, inner in value.items() for k, v in flat(inner, f"{prefix}{key}.").items()}


@pytest.mark.parametrize(("task", "name"), NAMED, ids="/".join)
def test_every_task_and_method_resolve_to_what_their_config_said(task: str, name: str) -> None:
    expected = dict(RESOLVED[task]["vanilla"])
    if name != "vanilla":
        difference = RESOLVED[task][name]
        expected |= difference["set"]
        expected = {k: v for k, v in expected.items() if k not in difference.get("gone", [])}
    made = config.named(task, name)
    newer = flat({"task": asdict(TaskConfig(task))})  # keys that there were not, at their defaults
    train = {"class_weights": "none", "evaluate_every": 0}
    stages = [
        {"train": train, "methods": [NEWER.get(type(m), {}) for m in stage.methods]}
        for stage in made.stages
    ]
    changed = {key: value for key, value in flat({"stages": stages}).items() if value != {}}
    assert flat(made.described()) == newer | expected | changed


def test_files_of_tasks_and_methods_say_how_to_use_them() -> None:
    assert len(NAMED) == 100
    assert {name for _, name in NAMED} <= set(recipes.methods())
    for file in recipes.FOLDER.glob("*/*.toml"):
        assert file.read_text().startswith("# xlt train --task")
    for file in presets.FOLDER.glob("*.toml"):
        assert "not run here" in file.read_text().lower()
    for file in (recipes.FOLDER / "methods").glob("*.toml"):
        table = tomllib.loads(file.read_text())
        assert set(table) <= {"train", "method", "stage", "tasks"}
        assert set(table.get("tasks", {})) <= set(recipes.tasks())


def test_methods_by_name_compose_with_what_each_brings() -> None:
    made = config.named("sib200", "synonyms,ear", ["seed=3"])
    assert [type(method) for method in made.stages[-1].methods] == [Synonyms, EAR]
    # Epochs as synonyms has them, the embeddings free as EAR has them, the rest as the task has it.
    train = made.stages[-1].train
    assert (train.epochs, train.freeze, train.batch_size, made.seed) == (2.0, -1, 16, 3)
    stages = config.named("sib200", ["l2_anchor", "isozcl"]).stages
    assert [[type(m) for m in stage.methods] for stage in stages[1:]] == [
        [L2Anchor, Isotropy],
        [L2Anchor, CodeSwitch],
    ]


def test_methods_that_contradict_each_other_are_refused_with_the_remedy() -> None:
    says = (
        r"train\.epochs is set to 2 by synonyms and 0\.5 by xmixup; say which: train\.epochs=VALUE"
    )
    with pytest.raises(ConfigError, match=says):
        config.named("sib200", "synonyms,xmixup")
    made = config.named("sib200", "synonyms,xmixup", ["train.epochs=1"])
    assert made.stages[-1].train.epochs == 1
    with pytest.raises(ConfigError, match=r"did you mean 'sib200'\?.*did you mean 'ear'\?"):
        config.named("sib20", "eer")
    with pytest.raises(ConfigError, match="noise is there twice"):
        config.named("sib200", "noise,noise")


@pytest.fixture(scope="module")
def stocked(
    toy_data: Path, encoders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Word lists, recorded translations of every task's toy texts, and a Fisher."""
    folder = tmp_path_factory.mktemp("stocked")
    shutil.copytree(toy_data / "lexicons", folder / "lexicons")
    for task in recipes.tasks():
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
    made = config.named("sib200", "l2_anchor", ["method.l2_anchor.strength=0.5"])
    assert [m.strength for m in made.stages[-1].methods if isinstance(m, L2Anchor)] == [0.5]
    two = [
        "method.code_switch.p=0.25",
        "stage.1.train.epochs=1",
        "stage.0.method.isotropy.weight=1",
    ]
    _, first, second = config.named("sib200", "isozcl", two).stages  # the head comes before them
    assert (first.train.epochs, second.train.epochs) == (4, 1)
    assert second.methods == [CodeSwitch(p=0.25)]
    assert first.methods == [Isotropy(weight=1)]
    for wrong in ("method.ear.alpha=1", "stage.2.train.epochs=1", "method.p=1", "seed.x=1"):
        with pytest.raises(ConfigError, match="goes into a value that is not a table"):
            config.named("sib200", "isozcl", [wrong])


@pytest.mark.parametrize(("task", "name"), NAMED, ids="/".join)
def test_every_config_that_ships_has_a_loss(
    task: str, name: str, stocked: Path, toy_data: Path, encoders: dict[str, Path]
) -> None:
    """What it says of its methods can be built and learnt from, stage after stage."""
    made = config.named(task, name)
    torch.manual_seed(0)
    source = toy_examples(made.task.name, toy_data)
    labels = sorted({example.label for example in source})
    model = models.build(str(encoders["xlm-roberta"]), labels, 32)
    pretrained = {name: p.detach().clone() for name, p in model.encoder_parameters()}
    known: set[type] = set()
    for stage in made.stages:
        context = context_of(
            stocked,
            task=made.task.name,
            steps=10,
            pretrained=pretrained,
            prepared=frozenset(known),
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


MBERT, LARGE = "bert-base-multilingual-cased", "xlm-roberta-large"


def test_a_preset_has_the_papers_numbers_and_nothing_of_the_small_encoders() -> None:
    """Those of Robust-XLT's scripts: scripts/train_xnli.sh and train_pawsx.sh at 0bb3c34."""
    for task, epochs, copies, every in (("xnli", 1, 3, 1000), ("pawsx", 3, 10, 500)):
        made = config.named(task, "synonyms", preset="paper")
        assert made.encoder == MBERT
        assert (made.seed, made.select) == (7, "source-dev")
        assert made.stages[0].train == TrainConfig(
            epochs=epochs,
            learning_rate=2e-5,
            batch_size=32,
            weight_decay=0.0,
            evaluate_every=every,
        )
        assert made.stages[0].methods == [Synonyms(copies=copies, keep_original=False)]
    (ear,) = config.named("pawsx", "ear", preset="paper").stages[0].methods
    assert ear == EAR(copies=10, layer=6)
    first, second = config.named("xnli", "isozcl", [f"encoder={LARGE}"], "paper").stages
    assert first.select == "last"
    assert second.select is None
    assert first.methods == [Isotropy(weight=1.0)]
    assert (first.train.epochs, first.train.batch_size) == (1, 64)
    assert (second.train.epochs, second.train.learning_rate) == (4, 5e-6)


def test_every_preset_resolves_for_all_that_it_says() -> None:
    for name in presets.papers():
        found = presets.paper(name)
        for task, method, encoder in itertools.product(found.tasks, found.methods, found.encoders):
            made = config.named(task, method, [f"encoder={encoder}"], name)
            assert made.encoder == encoder
            assert all(stage.train.head_first == 0 for stage in made.stages)
            assert all(stage.train.freeze == -1 for stage in made.stages)


def test_of_a_preset_the_paper_is_that_of_the_methods_or_is_named() -> None:
    rate = {
        preset: config.named("xnli", "vanilla", preset=preset).train.learning_rate
        for preset in ("paper", "huang2021", "ji2023")
    }
    assert rate == {"paper": 2e-5, "huang2021": 2e-5, "ji2023": 1e-5}
    both = config.named("xnli", "synonyms,isozcl", preset="paper")
    assert [[type(m) for m in stage.methods] for stage in both.stages] == [
        [Synonyms, Isotropy],
        [Synonyms, CodeSwitch],
    ]


def test_what_a_preset_says_can_be_overridden() -> None:
    folder = f"/models/{LARGE}"
    overrides = [f"encoder={folder}", "train.epochs=2", "method.adversarial.epsilon=0.1"]
    made = config.named("xnli", "adversarial", overrides, "paper")
    assert (made.encoder, made.train.epochs, made.train.learning_rate) == (folder, 2, 3e-5)
    assert made.stages[0].methods == [Adversarial(epsilon=0.1)]
    assert (made.task.data, made.task.lexicons) == ("hub", "../shared/data/lexicons")
    own = config.named("xnli", "adversarial", ["task.data=/data"], "paper").task
    assert (own.data, own.lexicons) == ("/data", "")


@pytest.mark.parametrize(
    ("task", "method", "encoder", "preset", "says"),
    [
        ("xnli", "ear", "small", "paper", "EAR has no numbers for encoder small"),
        ("sib200", "ear", MBERT, "paper", "EAR has no numbers for --task sib200"),
        ("xnli", "ear,xmixup", MBERT, "paper", "no paper has ear and xmixup"),
        ("xnli", "ear", MBERT, "ji2023", "IsoZCL has no numbers for --method ear"),
        ("xnli", "ear", MBERT, "papr", "did you mean 'paper'"),
    ],
)
def test_what_a_paper_has_no_numbers_for_is_refused(
    task: str, method: str, encoder: str, preset: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        config.named(task, method, [f"encoder={encoder}"], preset)


def test_rs_rp_is_uniform_noise() -> None:
    (method,) = config.named("sib200", "rs_rp").stages[-1].methods
    assert method == Noise(distribution="uniform", epsilon=0.01)
    assert recipes.variants() == {"rs_rp": "noise"}
    (paper,) = config.named("xnli", "rs_rp", preset="paper").stages[-1].methods
    assert paper == Noise(distribution="uniform", epsilon=0.01)


def test_weights_are_moved_before_the_head_is_fitted() -> None:
    stages = config.named("sib200", "l2_anchor,noisy_tune").stages
    assert stages[0].train.freeze >= 100
    assert stages[0].methods == [NoisyTune()]
    assert [type(m) for m in stages[1].methods] == [L2Anchor, NoisyTune]
