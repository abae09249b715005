"""A training config: a TOML file or names, strict keys, ``key=value`` overrides, every problem in one
message."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from xlt_serve.errors import ConfigError
from xlt_training.data import TaskConfig
from xlt_training.loop import composition, presets, toml_tables
from xlt_training.loop.method import Method, Trait
from xlt_training.loop.settings import FREEZE_ALL, STAGE_KEYS, TrainConfig, parse, task_problems
from xlt_training.loop.toml_tables import unknown
from xlt_training.methods import METHODS
from xlt_training.methods.vanilla import Vanilla


@dataclass
class Stage:
    """One run of the loop: its settings and its methods, outermost first. ``select`` "last": it hands
    its last state on to the next one, else the one that the config's ``select`` says."""

    train: TrainConfig
    methods: list[Method]
    select: Literal["last"] | None = None

    def described(self) -> dict[str, Any]:
        names = {kind: name for name, kind in METHODS.items()}
        return ({} if self.select is None else {"select": self.select}) | {
            "train": dataclasses.asdict(self.train),
            "methods": [{"name": names[type(m)], **dataclasses.asdict(m)} for m in self.methods],
        }


@dataclass
class Config:
    """``encoder``: hub name, folder, or the name of one that ships. ``stages``: usually one, made of
    ``[train]`` and the ``[[method]]`` tables; with ``[[stage]]`` tables, one for each, whose
    ``[stage.train]`` overrides ``[train]`` and whose methods follow the common ones. A stage with
    ``select = "last"`` hands on its last state."""

    encoder: str  # hub name or folder; "small": the one that ships
    task: TaskConfig  # what is trained on, and judged by
    train: TrainConfig = field(default_factory=TrainConfig)  # how each stage is trained
    stages: list[Stage] = field(default_factory=list)  # one for each [[stage]] table
    seed: int = 0  # of the order, the first weights and every draw
    select: Literal["source-dev", "all-dev", "last"] = "source-dev"
    """The epoch that is best on the source's dev rows, or on those of all languages; or the last."""

    def described(self) -> dict[str, Any]:
        """The resolved config as JSON values: what a run folder records and a resume compares."""
        out = dataclasses.asdict(dataclasses.replace(self, stages=[]))
        out.pop("train")
        out["stages"] = [stage.described() for stage in self.stages]
        return out


def load(file: Path, overrides: Sequence[str] = ()) -> Config:
    """Read, override, check. ``overrides`` are ``dotted.key=value`` with TOML values."""
    return _checked(toml_tables.read(file), overrides, file, [])


def of(table: dict[str, Any], settings: Mapping[str, Any], said: str) -> Config:
    """The same of a table; ``settings``: more values by their dotted keys."""
    problems: list[str] = []
    for key, value in settings.items():
        toml_tables.put(table, key, value, f"setting {key!r}", problems)
    return _checked(table, (), said, problems)


def named(
    task: str,
    methods: str | Sequence[str],
    overrides: Sequence[str] = (),
    preset: str = presets.SMALL,
) -> Config:
    """The same by names: ``named("sib200", "synonyms,ear")``, methods outermost first. ``preset``: whose
    numbers, those for the small encoder or a paper's (``loop/presets.py``)."""
    names = methods.split(",") if isinstance(methods, str) else list(methods)
    problems: list[str] = []
    table, said = presets.table_of(preset, task, names, overrides, problems)
    if not table:
        raise ConfigError(said, problems)
    return _checked(table, overrides, said, problems)


def _checked(
    table: dict[str, Any], overrides: Sequence[str], source: object, problems: list[str]
) -> Config:
    for override in overrides:
        toml_tables.override(table, override, problems)
    config = _config(table, problems)
    if problems or config is None:
        raise ConfigError(source, problems)
    return config


def _config(table: dict[str, Any], problems: list[str]) -> Config | None:
    table = dict(table)
    common = _methods(table.pop("method", []), "method", problems)
    entries = table.pop("stage", [{}])
    config: Config | None = parse(Config, table, "", problems)
    stages = _stages(entries, table.get("train", {}), common, problems)
    if config is None:
        return None
    config.stages = stages
    if not 0 <= config.seed < 2**32:
        problems.append(f"seed must be from 0 to 2**32 - 1, was: {config.seed}")
    problems += task_problems(config.task)
    return config


def _stages(
    entries: Any, common_train: Any, common: list[Method], problems: list[str]
) -> list[Stage]:
    out: list[Stage] = []
    sound = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
    if not sound or not entries:
        problems.append("stage must be one or more tables: write [[stage]]")
        return out
    for number, entry in enumerate(entries):
        prefix = f"stage[{number}]." if entry else ""
        for key in sorted(set(entry) - set(STAGE_KEYS)):
            problems.append(unknown(f"{prefix}{key}", None, STAGE_KEYS))
        if (select := entry.get("select")) not in (None, "last"):
            problems.append(f"{prefix}select must be 'last' or left out, was: {select!r}")
        own = entry.get("train", {})
        if not isinstance(own, dict) or not isinstance(common_train, dict):
            problems.append(f"{prefix}train must be a table")
            continue
        # What is wrong in [train] itself has been said once already.
        heard: list[str] = [] if not own else problems
        train: TrainConfig | None = parse(TrainConfig, common_train | own, f"{prefix}train.", heard)
        methods = common + _methods(entry.get("method", []), f"{prefix}method", problems)
        names = {kind: name for name, kind in METHODS.items()}
        problems += composition.problems([names[type(method)] for method in methods])
        if train is not None:
            problems += [f"{prefix}train.{problem}" for problem in train.problems()]
            out.append(Stage(train, methods, select))
    if len(out) > 1:
        named = [[entry["name"] for entry in stage.described()["methods"]] for stage in out]
        problems += composition.across_stages(named)
    if out and out[0].train.head_first:
        out.insert(0, _head_alone(out[0]))
    return out


def _head_alone(first: Stage) -> Stage:
    """Fine-tuning that begins with a random head distorts the encoder most where it has no labels to
    hold it: in the other languages. A head that fits already leaves little to distort (Kumar et al.
    2022, "Fine-tuning can distort pretrained features")."""
    train = dataclasses.replace(
        first.train,
        epochs=first.train.head_first,
        max_steps=-1,
        learning_rate=first.train.head_rate,
        freeze=FREEZE_ALL,
    )
    # What moves the weights comes before anything is fitted to them.
    kept = [m for m in first.methods if m.has(Trait.NORM) or m.has(Trait.MOVES_WEIGHTS)]
    return Stage(train, kept or [Vanilla()])


def is_head_alone(stage: Stage) -> bool:
    """Whether it is the one that ``head_first`` puts before the others."""
    return bool(stage.train.head_first) and stage.train.freeze == FREEZE_ALL


def _methods(entries: Any, prefix: str, problems: list[str]) -> list[Method]:
    out: list[Method] = []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        problems.append(f"{prefix} must be tables: write [[{prefix}]]")
        return out
    for number, entry in enumerate(entries):
        settings = dict(entry)
        name = settings.pop("name", None)
        if not isinstance(name, str):
            problems.append(f"{prefix}[{number}].name is required, a string")
            continue
        if name not in METHODS:
            problems.append(unknown(f"{prefix}[{number}].name", name, METHODS))
            continue
        method = parse(METHODS[name], settings, f"{prefix}[{number}].", problems)
        if method is not None:
            problems += [f"{prefix}[{number}].{problem}" for problem in method.problems()]
            out.append(method)
    return out
