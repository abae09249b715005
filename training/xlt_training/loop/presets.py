"""The papers' own numbers: a file for each paper in ``configs/papers``.

Its ``methods``, ``tasks`` and ``encoders`` are those that the paper, or its public code, has numbers
for. Its ``[[rule]]`` tables are applied in order: ``for`` says for which methods, tasks and encoders,
all if it says nothing, and the rest what they set, in the keys of an override.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlt_training.loop import recipes, toml_tables

FOLDER = recipes.FOLDER / "papers"
SMALL = "small"
PAPER = "paper"
"""The first paper that has all of the methods; the files stand in the order of their names."""


@dataclass(frozen=True)
class Paper:
    """What a file says."""

    title: str
    methods: list[str]
    tasks: list[str]
    encoders: list[str]
    rule: list[dict[str, Any]]

    def lacks(self, task: str, names: Sequence[str], encoder: str) -> list[str]:
        """What it has no numbers for."""
        asked = [("--method", name, self.methods) for name in names]
        asked += [("--task", task, self.tasks), ("encoder", encoder, self.encoders)]
        return [
            f"{self.title} has no numbers for {key} {value}; it has them for {', '.join(known)}. "
            f"Without --preset the numbers are those for the encoder {SMALL}"
            for key, value, known in asked
            if value not in known
        ]


def papers() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def known() -> list[str]:
    return [SMALL, PAPER, *papers()]


def paper(name: str) -> Paper:
    return Paper(**toml_tables.read(FOLDER / f"{name}.toml"))


def paper_of(preset: str, names: Sequence[str], problems: list[str]) -> Paper | None:
    """The paper that a preset means for some methods."""
    if preset not in known()[1:]:
        problems.append(toml_tables.unknown("--preset", preset, known()))
        return None
    if preset != PAPER:
        return paper(preset)
    all_papers = [paper(name) for name in papers()]
    found = next((one for one in all_papers if set(names) <= set(one.methods)), None)
    if found is None:
        told = "; ".join(f"{one.title}: {', '.join(one.methods)}" for one in all_papers)
        problems.append(f"--preset {PAPER}: no paper has {' and '.join(names)}. {told}")
    return found


def table_of(
    preset: str, task: str, names: Sequence[str], overrides: Sequence[str], problems: list[str]
) -> tuple[dict[str, Any], str]:
    """A config by names, not yet overridden, and what was asked for, for an error."""
    given = {key: value for key, _, value in (each.partition("=") for each in overrides)}
    said = f"--task {task} --method {','.join(names)}"
    if preset == SMALL:
        return recipes.resolved(task, names, given, problems), said
    return resolved(preset, task, names, given, problems), f"{said} --preset {preset}"


def resolved(
    preset: str, task: str, names: Sequence[str], given: Mapping[str, str], problems: list[str]
) -> dict[str, Any]:
    """One table, as ``recipes.resolved`` makes it of the small encoder's numbers. ``given``: overrides,
    of which the encoder decides what applies, and ``task.data`` whether the data come from the hub."""
    found = paper_of(preset, names, problems)
    if found is None:
        return {}
    place = given.get("encoder", found.encoders[0])
    encoder = Path(place.strip("\"'")).name  # a folder, or with the name of its owner
    problems += found.lacks(task, names, encoder)
    if problems:
        return {}
    out = base(task, names, "task.data" not in given)
    out["encoder"] = place
    asked = {"methods": {*names}, "tasks": {task}, "encoders": {encoder}}
    for rule in found.rule:
        settings = dict(rule)
        wanted: Mapping[str, list[str]] = settings.pop("for", {})
        if all(asked[kind] & {*values} for kind, values in wanted.items()):
            for key, value in toml_tables.dotted(settings):
                toml_tables.put(out, key, value, f"{key} of {found.title}", problems)
    return out


def base(task: str, names: Sequence[str], hub: bool) -> dict[str, Any]:
    """A config of these methods without a number. ``hub``: the papers' data; word lists and
    translations stay where the task's file says."""
    table = recipes.of_task(task)["task"]
    if hub:
        folder = table["data"]
        table |= {"data": "hub", "lexicons": f"{folder}/lexicons"}
        table |= {"translations": f"{folder}/{task}/mt"}
    out: dict[str, Any] = {"task": table, "train": {}}
    for name in names:
        brought = recipes.of_method(name, "", [])
        if "stage" in brought:
            out["stage"] = [
                {"method": [{"name": each["name"]} for each in stage["method"]], "train": {}}
                for stage in brought["stage"]
            ]
        else:
            out.setdefault("method", []).extend({"name": e["name"]} for e in brought["method"])
    return out
