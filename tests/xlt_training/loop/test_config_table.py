"""The page of a config's keys."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import pytest
from xlt_training.data.task_config import TaskConfig
from xlt_training.loop import config_table
from xlt_training.loop.config import Config
from xlt_training.loop.settings import TrainConfig, parse
from xlt_training.methods import METHODS

KINDS = {"Top level": Config, "`[task]`": TaskConfig, "`[train]`": TrainConfig} | {
    f"`{name}`": kind for name, kind in METHODS.items()
}


@dataclass
class Sample:
    beside: str = "#"  # a comment, with a # in it
    below: list[str] = field(default_factory=list)
    """A string, whose full stop goes."""
    # One line before it.
    above: int = 1
    none: Literal["a"] | dict[str, float] = "a"

    def method(self) -> None:
        inside: int = 3  # no field
        assert inside


def shown(title: str) -> dict[str, list[str]]:
    """Of a section of the committed page: key → the other cells of its row."""
    page = config_table.TABLE.read_text(encoding="utf-8")
    _, _, rest = page.partition(f"# {title}\n")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", rest.partition("\n#")[0], re.MULTILINE)
    return {key: re.split(r" \| ", cells) for key, cells in rows}


def test_the_committed_page_is_that_of_the_fields() -> None:
    """Else: python -m xlt_training.loop.config_table."""
    assert config_table.TABLE.read_text(encoding="utf-8") == config_table.table()


def test_a_meaning_stands_beside_its_field_or_above_or_below_it() -> None:
    said = {"beside": "a comment, with a # in it", "below": "A string, whose full stop goes"}
    said |= {"above": "One line before it", "none": ""}
    assert config_table.meanings(Sample) == said
    assert config_table.rows(Sample)[-1] == '| `none` | `"a"` or table of numbers | `"a"` |  |'


@pytest.mark.parametrize(("title", "kind"), KINDS.items(), ids=KINDS)
def test_every_key_is_there_with_its_meaning_and_the_default_that_it_has(
    title: str, kind: type
) -> None:
    found = shown(title)
    keys = {each.name for each in fields(kind)}
    assert found.keys() == (keys - {"task", "train", "stages"} if kind is Config else keys)
    assert all(meaning.strip() for _, _, meaning in found.values())
    given = {k: tomllib.loads(f"x = {d[1:-1]}")["x"] for k, (_, d, _) in found.items() if "`" in d}
    needed: dict[str, Any] = {k: "x" for k, (_, d, _) in found.items() if d == "required"}
    if kind is Config:
        needed["task"] = {"name": "files"}
    problems: list[str] = []
    assert parse(kind, needed | given, "", problems) == parse(kind, needed, "", problems)
    assert not problems
