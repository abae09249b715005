"""What a file imports, read from its syntax tree: at its top, inside functions, for types alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests import ROOT

FOLDERS = {"xlt_serve": ROOT, "xlt_training": ROOT / "training", "benchmarks": ROOT, "tests": ROOT}


class Import(NamedTuple):
    file: Path  # as seen from the project's folder
    line: int
    importer: str  # dotted name of the module that imports
    target: str  # dotted name of what is imported: a module of ours, or as it is written


@cache
def modules(package: str) -> dict[str, Path]:
    """Dotted name → file of every module of a package; a package's own is that of its ``__init__``."""
    base = FOLDERS[package]
    found = {}
    for file in sorted((base / package).rglob("*.py")):
        parts = file.relative_to(base).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@cache
def imports(package: str) -> tuple[Import, ...]:
    """Every import in a package, also by ``import_module("name")`` and functions that wrap it."""
    wrappers = {name for file in modules(package).values() for name in _wrappers(tree(file))}
    return tuple(
        Import(file.relative_to(ROOT), line, importer, _module(target))
        for importer, file in modules(package).items()
        for line, target in targets(importer, file, frozenset({"import_module"} | wrappers))
    )


def _wrappers(module: ast.Module) -> Iterator[str]:
    """Functions that import the module that their first argument names."""
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef) and function.args.args:
            first = function.args.args[0].arg
            for node in ast.walk(function):
                match node:
                    case ast.Call(
                        func=ast.Attribute(attr="import_module"), args=[ast.Name(id=name)]
                    ) if name == first:
                        yield function.name


def targets(
    importer: str, file: Path, importing: frozenset[str] = frozenset({"import_module"})
) -> Iterator[tuple[int, str]]:
    here = importer if file.name == "__init__.py" else importer.rpartition(".")[0]
    for node in ast.walk(tree(file)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, name.name) for name in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = here.split(".")[: len(here.split(".")) - level + 1] if level else []
                base = ".".join([*above, *([module] if module else [])])
                yield from ((node.lineno, f"{base}.{name.name}") for name in names)
            case ast.Call(
                func=ast.Attribute(attr=called) | ast.Name(id=called),
                args=[ast.Constant(value=str(name)), *_],
            ) if called in importing:
                yield node.lineno, name


def _module(target: str) -> str:
    """``xlt_serve.errors.XltError`` → ``xlt_serve.errors``; others as they are."""
    package = target.split(".")[0]
    if package not in FOLDERS:
        return target
    while target not in modules(package) and "." in target:
        target = target.rpartition(".")[0]
    return target
