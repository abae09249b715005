"""Configs by name: ``configs/tasks`` has a file a task, ``configs/methods`` one a method.

A method's file says what it changes of the task's ``[train]``, and its own settings as in any config;
``[tasks.NAME]`` what differs for one task, in the keys of an override. A method without a file is
taken as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from xlt_training.loop import toml_tables
from xlt_training.loop.method_keys import method_keys

FOLDER = Path(__file__).parent.parent / "configs"


def tasks() -> list[str]:
    return sorted(file.stem for file in (FOLDER / "tasks").glob("*.toml"))


def methods() -> list[str]:
    """Also those files that name several methods, in stages, or a variant of one."""
    files = (file.stem for file in (FOLDER / "methods").glob("*.toml"))
    return sorted({*method_keys(), *files})


def staged() -> dict[str, list[list[str]]]:
    """Files that are no method but name several: the methods of each stage."""
    out = {}
    for name in sorted({*methods()} - {*method_keys()}):
        if stages := of_method(name, "", []).get("stage"):
            out[name] = [[entry["name"] for entry in stage["method"]] for stage in stages]
    return out


def variants() -> dict[str, str]:
    """Files that are a method with other settings: its name."""
    names = sorted({*methods()} - {*method_keys()} - {*staged()})
    return {name: of_method(name, "", [])["method"][0]["name"] for name in names}


def resolved(
    task: str, names: Sequence[str], given: Collection[str], problems: list[str]
) -> dict[str, Any]:
    """One table: the task's, then what each method brings, outermost first.

    Where two methods want a setting of ``[train]`` otherwise, nobody but the user can tell which is
    right for both: it must be among the keys that are ``given``.
    """
    if task not in tasks():
        problems.append(toml_tables.unknown("--task", task, tasks()))
    problems += [toml_tables.unknown("--method", n, methods()) for n in names if n not in methods()]
    if problems:
        return {}
    out = of_task(task)
    brought = {name: of_method(name, task, problems) for name in names}
    wanted: dict[str, dict[str, Any]] = {}
    for name in names:
        for key, value in brought[name].get("train", {}).items():
            wanted.setdefault(key, {})[name] = value
    for key, by_name in wanted.items():
        if len(set(by_name.values())) > 1 and f"train.{key}" not in given:
            shown = " and ".join(f"{value} by {name}" for name, value in by_name.items())
            problems.append(f"train.{key} is set to {shown}; say which: train.{key}=VALUE")
        out["train"][key] = next(iter(by_name.values()))
    if entries := [entry for name in names for entry in brought[name].get("method", [])]:
        out["method"] = entries
    staged = [name for name in names if "stage" in brought[name]]
    if len(staged) > 1:
        problems.append(f"{' and '.join(staged)}: each has stages of its own; write a config")
    for name in staged[:1]:
        out["stage"] = brought[name]["stage"]
    return out


def of_task(task: str) -> dict[str, Any]:
    """What a task's file says."""
    return toml_tables.read(FOLDER / "tasks" / f"{task}.toml")


def of_method(name: str, task: str, problems: list[str]) -> dict[str, Any]:
    """What a method's file says for a task."""
    file = FOLDER / "methods" / f"{name}.toml"
    plain: dict[str, Any] = {"method": [{"name": name}]}
    out = toml_tables.read(file) if file.is_file() else plain
    for key, value in toml_tables.dotted(out.pop("tasks", {}).get(task, {})):
        toml_tables.put(out, key, value, f"{key} of {file.name}", problems)
    return out
