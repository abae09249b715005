"""A training config: a TOML file or names, strict keys, ``key=value`` overrides, every problem in one
message."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from xlt_serve.errors import ConfigError
from xlt_training.data import TASKS, TaskConfig
from xlt_training.data.task_config import OWN
from xlt_training.loop import composition, recipes, toml_tables
from xlt_training.loop.method import Method, Trait
from xlt_training.loop.toml_tables import unknown
from xlt_training.methods import METHODS
from xlt_training.methods.vanilla import Vanilla

FREEZE_ALL = 1000
"""More layers than any encoder has."""


@dataclass
class TrainConfig:
    """How one stage is trained."""

    epochs: float = 3.0
    learning_rate: float = 2e-5
    batch_size: int = 32
    accumulate: int = 1
    max_length: int = 128
    warm_up: float = 0.0
    weight_decay: float = 0.01
    clip: float = 1.0
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    max_steps: int = -1
    group_by_length: bool = False  # batches of similar length: less padding, less random an order
    freeze: int = -1  # 0: the embeddings stay as they are, n: and the lowest n layers; -1: nothing
    head_first: float = 0.0  # epochs that train the head alone, before the first stage
    head_rate: float = 1e-3  # learning rate of these

    def problems(self) -> list[str]:
        """What the types alone can't tell."""
        out = []
        for name in ("epochs", "learning_rate", "head_rate", "batch_size", "accumulate", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                out.append(f"{name} must be positive, was: {getattr(self, name)}")
        if not 0 <= self.weight_decay < math.inf:
            out.append(f"weight_decay must be zero or more, was: {self.weight_decay}")
        if not 0 <= self.head_first < math.inf:
            out.append(f"head_first must be zero or more, was: {self.head_first}")
        if self.max_length < 8:
            out.append(f"max_length must be at least 8, was: {self.max_length}")
        if self.freeze < -1:
            out.append(f"freeze must be -1 or a number of layers, was: {self.freeze}")
        if self.max_steps == 0 or self.max_steps < -1:
            out.append(f"max_steps must be positive, or -1 for all, was: {self.max_steps}")
        if not 0 <= self.warm_up < 1:
            out.append(f"warm_up is a share of all steps, in [0, 1), was: {self.warm_up}")
        return out


@dataclass
class Stage:
    """One run of the loop: its settings and its methods, outermost first."""

    train: TrainConfig
    methods: list[Method]

    def described(self) -> dict[str, Any]:
        names = {kind: name for name, kind in METHODS.items()}
        return {
            "train": dataclasses.asdict(self.train),
            "methods": [{"name": names[type(m)], **dataclasses.asdict(m)} for m in self.methods],
        }


@dataclass
class Config:
    """``encoder``: hub name, folder, or the name of one that ships. ``stages``: usually one, made of
    ``[train]`` and the ``[[method]]`` tables; with ``[[stage]]`` tables, one for each, whose
    ``[stage.train]`` overrides ``[train]`` and whose methods follow the common ones."""

    encoder: str
    task: TaskConfig
    train: TrainConfig = field(default_factory=TrainConfig)
    stages: list[Stage] = field(default_factory=list)
    seed: int = 0
    select: Literal["source-dev", "all-dev", "last"] = "source-dev"  # "last": the last epoch's

    def described(self) -> dict[str, Any]:
        """The resolved config as JSON values: what a run folder records and a resume compares."""
        out = dataclasses.asdict(dataclasses.replace(self, stages=[]))
        out.pop("train")
        out["stages"] = [stage.described() for stage in self.stages]
        return out


def load(file: Path, overrides: Sequence[str] = ()) -> Config:
    """Read, override, check. ``overrides`` are ``dotted.key=value`` with TOML values."""
    return _checked(toml_tables.read(file), overrides, file, [])


def named(task: str, methods: str | Sequence[str], overrides: Sequence[str] = ()) -> Config:
    """The same by names: ``named("sib200", "synonyms,ear")``, methods outermost first."""
    names = methods.split(",") if isinstance(methods, str) else list(methods)
    problems: list[str] = []
    given = {override.partition("=")[0] for override in overrides}
    table = recipes.resolved(task, names, given, problems)
    said = f"--task {task} --method {','.join(names)}"
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
    config: Config | None = _parse(Config, table, "", problems)
    stages = _stages(entries, table.get("train", {}), common, problems)
    if config is None:
        return None
    config.stages = stages
    if not 0 <= config.seed < 2**32:
        problems.append(f"seed must be from 0 to 2**32 - 1, was: {config.seed}")
    if config.task.name not in (*TASKS, *OWN):
        problems.append(unknown("task.name", config.task.name, [*TASKS, *OWN]))
    problems += config.task.problems()
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
        for key in sorted(set(entry) - {"train", "method"}):
            problems.append(unknown(f"{prefix}{key}", None, ("train", "method")))
        own = entry.get("train", {})
        if not isinstance(own, dict) or not isinstance(common_train, dict):
            problems.append(f"{prefix}train must be a table")
            continue
        # What is wrong in [train] itself has been said once already.
        heard: list[str] = [] if not own else problems
        train: TrainConfig | None = _parse(
            TrainConfig, common_train | own, f"{prefix}train.", heard
        )
        methods = common + _methods(entry.get("method", []), f"{prefix}method", problems)
        names = {kind: name for name, kind in METHODS.items()}
        problems += composition.problems([names[type(method)] for method in methods])
        if train is not None:
            problems += [f"{prefix}train.{problem}" for problem in train.problems()]
            out.append(Stage(train, methods))
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
    norms = [method for method in first.methods if method.has(Trait.NORM)]
    return Stage(train, norms or [Vanilla()])


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
        method = _parse(METHODS[name], settings, f"{prefix}[{number}].", problems)
        if method is not None:
            problems += [f"{prefix}[{number}].{problem}" for problem in method.problems()]
            out.append(method)
    return out


def _parse(kind: type, table: dict[str, Any], prefix: str, problems: list[str]) -> Any:
    """``kind`` built from a table; each unknown, missing or mistyped key is a problem."""
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind) if f.name != "stages"}
    for key in table:
        if key not in known:
            problems.append(unknown(f"{prefix}{key}", None, known))
    values: dict[str, Any] = {}
    failed = False
    for name, spec in known.items():
        hint = hints[name]
        if name not in table:
            if spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
                problems.append(f"{prefix}{name} is required")
                failed = True
        elif dataclasses.is_dataclass(hint):
            if isinstance(table[name], dict):
                values[name] = _parse(hint, table[name], f"{prefix}{name}.", problems)  # type: ignore[arg-type]
                failed = failed or values[name] is None
            else:
                problems.append(f"{prefix}{name} must be a table: write [{prefix}{name}]")
                failed = True
        else:
            value, problem = _value(table[name], hint)
            if problem:
                problems.append(f"{prefix}{name} {problem}")
                failed = True
            values[name] = value
    return None if failed else kind(**values)


def _value(value: Any, hint: Any) -> tuple[Any, str]:
    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        return value, "" if value in choices else f"must be one of {list(choices)}, was: {value!r}"
    if origin in (typing.Union, types.UnionType):
        tried = [_value(value, choice) for choice in typing.get_args(hint)]
        return next((pair for pair in tried if not pair[1]), tried[0])
    if origin is list:
        if not isinstance(value, list):
            return value, f"must be a list, was: {value!r}"
        parts = [_value(part, typing.get_args(hint)[0]) for part in value]
        return [part for part, _ in parts], next((problem for _, problem in parts if problem), "")
    if origin is dict:
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            return value, f"must be a table of strings, was: {value!r}"
        return value, ""
    if hint is type(None):
        return value, "" if value is None else f"must be empty, was: {value!r}"
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value), ""
    # bool is a subclass of int: True must not pass as a number.
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value, ""
    return value, f"must be {hint.__name__}, was: {value!r}"
