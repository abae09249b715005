"""The names of all methods and their keys, without torch, which their modules import and which takes
seconds: a typo is told before that."""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

REGISTRY = "xlt_training.methods"
FOLDER = Path(__file__).parent.parent / "methods"


def method_keys() -> dict[str, list[str]]:
    """By name, in the order of the registry: of the classes where they are imported already (some may be a
    program's own), else of their source."""
    imported = sys.modules.get(REGISTRY)
    if imported is None:
        return of_source()
    return {
        name: [each.name for each in dataclasses.fields(kind)]
        for name, kind in imported.METHODS.items()
    }


def of_source() -> dict[str, list[str]]:
    """What the registry and the classes' own annotations say. A method inherits no fields; a test
    compares with the classes."""
    registry = ast.parse((FOLDER / "__init__.py").read_text(encoding="utf-8"))
    modules = {
        alias.name: (node.module or "").removeprefix(f"{REGISTRY}.")
        for node in registry.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {name: list(_fields(modules[kind], kind)) for name, kind in _entries(registry)}


def _entries(registry: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and class of each line of ``METHODS``."""
    for node in registry.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            for key, kind in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(kind, ast.Name):
                    yield str(key.value), kind.id


def _fields(module: str, kind: str) -> Iterator[str]:
    source = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
    (made,) = (n for n in source.body if isinstance(n, ast.ClassDef) and n.name == kind)
    for node in made.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if not ast.unparse(node.annotation).startswith("ClassVar"):
            yield node.target.id
