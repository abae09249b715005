"""What is wrong with an order to train, as far as it can be told without torch, which takes seconds to
import. The values of methods, and whether they go together, are looked at later (``loop/config.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xlt_serve.errors import ConfigError
from xlt_training.data.task_config import TaskConfig
from xlt_training.loop import presets, toml_tables
from xlt_training.loop.method_keys import method_keys
from xlt_training.loop.settings import KEYS, STAGE_KEYS, TrainConfig, parse, task_problems
from xlt_training.loop.toml_tables import unknown


def check(file: Path, overrides: Sequence[str] = ()) -> None:
    """A ConfigError for what is wrong in a config."""
    _refuse(toml_tables.read(file), overrides, file, [])


def check_named(task: str, names: Sequence[str], overrides: Sequence[str], preset: str) -> None:
    """The same by names."""
    problems: list[str] = []
    table, said = presets.table_of(preset, task, names, overrides, problems)
    if not table:
        raise ConfigError(said, problems)
    _refuse(table, overrides, said, problems)


def _refuse(
    table: dict[str, Any], overrides: Sequence[str], source: object, problems: list[str]
) -> None:
    for each in overrides:
        toml_tables.override(table, each, problems)
    problems += [unknown(key, None, KEYS) for key in table if key not in KEYS]
    common = table.get("train", {})
    for name, kind in (("task", TaskConfig), ("train", TrainConfig)):
        if isinstance(table.get(name), dict):
            made = parse(kind, table[name], f"{name}.", problems)
            if isinstance(made, TaskConfig):
                problems += task_problems(made)
            elif isinstance(made, TrainConfig):
                problems += [f"{name}.{problem}" for problem in made.problems()]
    problems += method_problems(table.get("method", []), "method")
    for number, stage in enumerate(_tables(table.get("stage", []))):
        before = f"stage[{number}]."
        problems += [
            unknown(f"{before}{k}", None, STAGE_KEYS) for k in stage if k not in STAGE_KEYS
        ]
        if stage.get("train") and isinstance(stage["train"], dict) and isinstance(common, dict):
            parse(TrainConfig, common | stage["train"], f"{before}train.", problems)
        problems += method_problems(stage.get("method", []), f"{before}method")
    if problems:
        raise ConfigError(source, problems)


def method_problems(entries: Any, prefix: str) -> list[str]:
    """Names and keys that there are not."""
    known, out = method_keys(), list[str]()
    for number, entry in enumerate(_tables(entries)):
        name = entry.get("name")
        if not isinstance(name, str):
            out.append(f"{prefix}[{number}].name is required, a string")
        elif name not in known:
            out.append(unknown(f"{prefix}[{number}].name", name, known))
        else:
            mine = ["name", *known[name]]
            out += [
                unknown(f"{prefix}[{number}].{k}", None, mine[1:]) for k in entry if k not in mine
            ]
    return out


def _tables(value: Any) -> list[dict[str, Any]]:
    """What else it may be, the whole check tells."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
