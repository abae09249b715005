from __future__ import annotations

from pathlib import Path

import pytest

from training import config
from training.methods import METHODS
from xlt_serve.errors import ConfigError, DataError

CONFIGS = sorted((Path(config.__file__).parent / "configs").rglob("*.toml"))


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
