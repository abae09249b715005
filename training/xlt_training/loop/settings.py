"""What a config may say, but for its methods. No torch here, which takes seconds to import: a typo is
told before that (``loop/early.py``)."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

from xlt_training.data.task_config import OWN, TaskConfig
from xlt_training.data.tasks import TASKS
from xlt_training.loop.toml_tables import unknown

KEYS = ("encoder", "task", "train", "seed", "select", "method", "stage")
STAGE_KEYS = ("train", "method", "select")

FREEZE_ALL = 1000
"""More layers than any encoder has."""


@dataclass
class TrainConfig:
    """How one stage is trained."""

    epochs: float = 3.0  # passes over the train rows; a part of one too
    learning_rate: float = 2e-5  # greatest rate of AdamW; it falls to zero in a straight line
    batch_size: int = 32  # rows a batch, on each GPU
    accumulate: int = 1  # batches whose gradients are added up for one step
    max_length: int = 128  # tokens of a text or pair; longer ones are cut
    warm_up: float = 0.0  # steps in which the rate rises from zero: a share or, from 1 on, a number
    weight_decay: float = 0.01  # of AdamW
    clip: float = 1.0  # greatest norm of the gradient
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"  # of the arithmetic; weights are fp32
    max_steps: int = -1  # end after so many steps, whatever epochs says; -1: never
    group_by_length: bool = False  # batches of similar length: less padding, less random an order
    freeze: int = -1  # 0: the embeddings stay as they are; n: and the lowest n layers; -1: nothing
    head_first: float = 0.0  # epochs that train the head alone, before the first stage
    head_rate: float = 1e-3  # learning rate of these
    class_weights: Literal["none", "balanced"] | dict[str, float] = "none"  # of the loss, by label
    evaluate_every: int = 0  # steps after which dev is looked at; 0: each epoch

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
        if not isinstance(self.class_weights, str):
            for label, weight in self.class_weights.items():
                if not 0 < weight < math.inf:
                    out.append(f"class_weights.{label} must be positive, was: {weight}")
        if self.max_length < 8:
            out.append(f"max_length must be at least 8, was: {self.max_length}")
        if self.freeze < -1:
            out.append(f"freeze must be -1 or a number of layers, was: {self.freeze}")
        if self.max_steps == 0 or self.max_steps < -1:
            out.append(f"max_steps must be positive, or -1 for all, was: {self.max_steps}")
        if not 0 <= self.warm_up < 1 and not (self.warm_up >= 1 and self.warm_up % 1 == 0):
            out.append(
                "warm_up is a share of all steps, in [0, 1), or a whole number of steps, "
                f"was: {self.warm_up}"
            )
        if self.evaluate_every < 0:
            out.append(f"evaluate_every must be steps, or 0 for epochs, was: {self.evaluate_every}")
        return out


def defaults(encoder: str) -> dict[str, Any]:
    """Of ``[train]``, for a file of one's own. The small encoder wants a high rate, its head trained first
    and its embeddings still; those of the papers, which are larger, do not."""
    if encoder == "small":
        return {
            "epochs": 5,
            "learning_rate": 1e-4,
            "batch_size": 16,
            "warm_up": 0.1,
            "group_by_length": True,
            "head_first": 2,
            "freeze": 0,
        }
    return {"epochs": 5, "learning_rate": 2e-5, "batch_size": 32, "warm_up": 0.1}


def task_problems(task: TaskConfig) -> list[str]:
    if task.name not in (*TASKS, *OWN):
        return [unknown("task.name", task.name, [*TASKS, *OWN])]
    return task.problems()


def parse(kind: type, table: dict[str, Any], prefix: str, problems: list[str]) -> Any:
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
                values[name] = parse(hint, table[name], f"{prefix}{name}.", problems)  # type: ignore[arg-type]
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
        # A table that fits none is meant as a table.
        meant = tried[-1] if isinstance(value, dict) else tried[0]
        return next((pair for pair in tried if not pair[1]), meant)
    if origin is list:
        if not isinstance(value, list):
            return value, f"must be a list, was: {value!r}"
        parts = [_value(part, typing.get_args(hint)[0]) for part in value]
        return [part for part, _ in parts], next((problem for _, problem in parts if problem), "")
    if origin is dict:
        inner = typing.get_args(hint)[1]
        named = {str: "strings", float: "numbers"}[inner]
        if not isinstance(value, dict):
            return value, f"must be a table of {named}, was: {value!r}"
        made = {key: _value(each, inner) for key, each in value.items()}
        if any(problem for _, problem in made.values()):
            return value, f"must be a table of {named}, was: {value!r}"
        return {key: each for key, (each, _) in made.items()}, ""
    if hint is type(None):
        return value, "" if value is None else f"must be empty, was: {value!r}"
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value), ""
    # bool is a subclass of int: True must not pass as a number.
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value, ""
    return value, f"must be {hint.__name__}, was: {value!r}"
