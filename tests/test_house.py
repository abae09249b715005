"""The plan of the house: what lies where, and who may import whom (docs/architecture.md)."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.imports import FOLDERS, imports, modules, targets, tree

TOP = {
    "pyproject.toml",
    "README.md",
    "xlt_serve",
    "training",
    "bentofile.yaml",
    "tests",
    "benchmarks",
    "docs",
    "LICENSE",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "Makefile",
}
LONGEST_FUNCTION = 59  # lines

# From the ground up: a room imports rooms before it, never one after it.
SERVING_LADDER = [
    "errors",
    "types",
    "calibration",
    "manifest",
    "signing",
    "bundle",
    "text",
    "files",
    "smoothing",
    "runtime",
    "translation",
    "modes",
]
SERVING: dict[str, set[str]] = {
    room: set(SERVING_LADDER[:step]) for step, room in enumerate(SERVING_LADDER)
}
SERVING["classifier"] = set(SERVING_LADDER)
SERVING["wire"] = {"errors", "types", "modes"}
SERVING["client"] = {"errors", "types", "modes", "wire"}
# Above the classifier stand four rooms that do not know of each other, but for the command line.
SERVING["scoring"] = SERVING["evaluation"] = {*SERVING_LADDER, "classifier"}
SERVING["bench"] = {*SERVING_LADDER, "classifier", "evaluation"}
SERVING["serving"] = {*SERVING_LADDER, "classifier", "wire"}
SERVING["service"] = {"errors", "serving"}
SERVING["deploy"] = {"errors", "signing", "bundle"}
SERVING["cli"] = {*SERVING} - {"service"}
SERVING[""] = {"classifier", "client", "errors", "types"}  # the public names

# Of training's rooms: modules of loop, methods and data import each other, but never in a circle.
_CORE = {"data", "loop", "methods"}
TRAINING: dict[str, set[str]] = {
    "": {"api"},
    "api": {*_CORE, "exporting"},
    **dict.fromkeys(_CORE, _CORE),
    "exporting": _CORE,
    "analysis": _CORE,
    "encoders": {*_CORE, "exporting"},
}

# What a package may import of our other packages and of the training stack.
PACKAGES: dict[str, set[str]] = {
    "xlt_serve": set(),
    "xlt_training": {"xlt_serve", "torch", "transformers"},
    "benchmarks": {"xlt_serve", "xlt_training", "torch", "transformers"},
}
WATCHED = {*FOLDERS, "torch", "transformers"}
OUTSIDE = (
    "xlt_serve/bench/outside/",  # runs in the environments of what we are compared with
    "xlt_serve/translation/convert.py",  # `xlt translator convert`, which no service calls
)


def room_of(module: str) -> str:
    """``xlt_serve.text.tokens`` → ``text``; of the package itself: ``""``."""
    return module.split(".")[1] if "." in module else ""


def wrong_arrows(package: str, rooms: dict[str, set[str]]) -> Iterator[str]:
    for found in imports(package):
        if found.target.split(".")[0] != package:
            continue
        here, there = room_of(found.importer), room_of(found.target)
        if here not in rooms:
            yield f"{found.file}: {here!r} is no room of the plan; give it a line in {__file__}"
        elif there not in rooms[here] | {here}:
            allowed = ", ".join(sorted(rooms[here])) or "no other room"
            yield f"{found.file}:{found.line} imports {found.target}: {here} may import {allowed}"


def circle(package: str) -> set[str]:
    """Modules of import circles, and those between two circles."""
    arrows = {
        (found.importer, found.target)
        for found in imports(package)
        if found.target in modules(package) and found.importer != found.target
    }
    before = None
    while arrows != before:
        before = arrows
        importers, targets = {a for a, _ in arrows}, {b for _, b in arrows}
        arrows = {(a, b) for a, b in arrows if a in targets and b in importers}
    return {a for a, _ in arrows}


def classes(package: str) -> Iterator[str]:
    for file in modules(package).values():
        for node in tree(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name


def repeated(names: Iterator[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def long_functions(package: str) -> Iterator[str]:
    for file in modules(package).values():
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if (lines := node.end_lineno - node.lineno + 1) > LONGEST_FUNCTION:
                    yield f"{file.relative_to(ROOT)} {node.name}: {lines} lines"


def test_an_import_is_seen_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "import a.b\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from .near import c\n"
        "def f():\n    from ..far import d\n    importlib.import_module('e')\n"
    )
    found = {target for _, target in targets("top.room.module", file)}
    assert found == {"a.b", "typing.TYPE_CHECKING", "top.room.near.c", "top.far.d", "e"}


@pytest.mark.parametrize(("package", "rooms"), [("xlt_serve", SERVING), ("xlt_training", TRAINING)])
def test_arrows_between_rooms_go_one_way(package: str, rooms: dict[str, set[str]]) -> None:
    found = list(wrong_arrows(package, rooms))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_arrows_between_packages_go_one_way(package: str) -> None:
    found = [
        f"{found.file}:{found.line} imports {found.target}: {package} may not"
        for found in imports(package)
        if found.target.split(".")[0] in WATCHED - {package} - PACKAGES[package]
        and not str(found.file).startswith(OUTSIDE)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", ["xlt_serve", "xlt_training"])
def test_no_module_imports_itself_by_way_of_others(package: str) -> None:
    assert circle(package) == set()


def test_the_root_of_serving_has_at_most_ten_modules() -> None:
    found = sorted(file.name for file in (ROOT / "xlt_serve").glob("*.py"))
    assert len(found) <= 10, found


@pytest.mark.parametrize("package", ["xlt_serve", "xlt_training"])
def test_a_name_means_one_module(package: str) -> None:
    names = (file.stem for file in modules(package).values())
    assert repeated(names) <= {"__init__", "__main__"}


@pytest.mark.parametrize("package", ["xlt_serve", "xlt_training"])
def test_a_name_means_one_class(package: str) -> None:
    assert repeated(classes(package)) == set()


@pytest.mark.parametrize("package", FOLDERS)
def test_a_function_fits_on_a_page(package: str) -> None:
    found = list(long_functions(package))
    assert not found, f"{LONGEST_FUNCTION} lines are the most: " + "; ".join(found)


def test_tests_mirror_the_tree() -> None:
    folders = [
        file.parent.relative_to(ROOT / "tests") for file in (ROOT / "tests").rglob("test_*.py")
    ]
    for folder in set(folders):
        if not folder.parts or folder.parts == ("end_to_end",):
            continue
        assert folder.parts[0] in FOLDERS, f"tests/{folder}: no package of this name"
        assert (FOLDERS[folder.parts[0]] / folder).is_dir(), f"tests/{folder} tests no folder"


def test_the_top_level_is_the_agreed_one() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no clone: git can't say which files are the project's")
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    found = {line.partition("/")[0] for line in listed}
    assert {name for name in found if not name.startswith(".")} - TOP == set()
