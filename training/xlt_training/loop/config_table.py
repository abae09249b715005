"""``docs/config.md``: every key of a config, from the fields that the keys are.

Run by ``python -m xlt_training.loop.config_table``.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import tokenize
import types
import typing
from pathlib import Path
from typing import Any, Literal

from xlt_training.data.task_config import TaskConfig
from xlt_training.loop.config import Config
from xlt_training.loop.settings import TrainConfig, defaults
from xlt_training.methods import METHODS

TABLE = Path(__file__).parents[3] / "docs" / "config.md"

KINDS = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}

HEAD = """\
# Every key of a config

What a config (TOML) may say, and so what `key=value` on the command line and `settings={…}` of `fit` may
change: `train.epochs=3`, `method.ear.alpha=0.5`. An unknown key is refused. This page is made of the code;
how the keys work together is told in [training](training.md).

```toml
encoder = "small"

[task]
name = "files"
train = "train.csv"

[train]
epochs = 5

[[method]]
name = "ear"
alpha = 1.0
```

Configs of tasks and methods that ship, in `training/xlt_training/configs`, say otherwise than the defaults
where a paper or our own dev sets do.
"""


def meanings(kind: type) -> dict[str, str]:
    """Of each field of a dataclass: the comment at its end or above it, or the string below it."""
    source = inspect.cleandoc("\n" + inspect.getsource(kind))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t for t in tokens if t.type == tokenize.COMMENT}
    beside = {line: t.string.lstrip("# ") for line, t in comments.items()}
    above = {line + 1: beside[line] for line, t in comments.items() if t.line.lstrip()[0] == "#"}
    (made,) = ast.parse(source).body
    assert isinstance(made, ast.ClassDef)
    out = {}
    for node, below in zip(made.body, [*made.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            about = beside.get(node.end_lineno or 0) or above.get(node.lineno, "")
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                about = inspect.cleandoc(str(below.value.value))
            out[node.target.id] = about.rstrip(".")
    return out


def kind_of(hint: Any) -> str:
    """A type, as somebody who writes TOML calls it."""
    if typing.get_origin(hint) is Literal:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(kind_of(choice) for choice in typing.get_args(hint))
    if typing.get_origin(hint) in (list, dict):
        many = "list" if typing.get_origin(hint) is list else "table"
        return f"{many} of {kind_of(typing.get_args(hint)[-1])}s"
    return KINDS[hint]


def default_of(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{json.dumps(field.default, ensure_ascii=False)}`"
    if field.default_factory is not dataclasses.MISSING:
        return f"`{json.dumps(field.default_factory())}`"
    return "required"


def rows(kind: type) -> list[str]:
    """The table of a dataclass's fields, but for those that are tables themselves."""
    hints, about = typing.get_type_hints(kind), meanings(kind)
    out = ["| key | kind | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(kind):
        if field.name not in ("task", "train", "stages") or kind is not Config:
            cells = (kind_of(hints[field.name]), default_of(field), markdown(about[field.name]))
            out.append(f"| `{field.name}` | {' | '.join(cells)} |")
    return out if len(out) > 2 else ["No keys of its own."]


def markdown(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def section(title: str, kind: type) -> list[str]:
    return ["", title, "", markdown(inspect.getdoc(kind) or ""), "", *rows(kind)]


def table() -> str:
    small = ", ".join(f"`{name} = {json.dumps(v)}`" for name, v in defaults("small").items())
    lines = [HEAD, "## Top level", "", *rows(Config)]
    lines += section("## `[task]`", TaskConfig) + section("## `[train]`", TrainConfig)
    lines += ["", "For the small encoder and files of your own, `xlt init` and `fit` set"]
    lines += [f"{small}."]
    lines += [
        "",
        "## `[[stage]]`",
        "",
        "Several runs of the loop, one after the other. Each `[[stage]]` may have a `[stage.train]`, which",
        "overrides `[train]`, and `[[stage.method]]` tables, which follow the common ones.",
        "",
        "## `[[method]]`",
        "",
        "One table for each method, the outermost first; `name` says which.",
    ]
    for name, kind in METHODS.items():
        lines += section(f"### `{name}`", kind)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
