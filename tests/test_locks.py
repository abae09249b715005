"""The locks name every file by its hash, fit what is declared, and say nothing of the machine."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT
from tests.locks import DEV, DOCS, GPU, SERVE, TORCH, Pin, pins

FILE = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = FILE["project"]
OURS = {"xlt-serve", "xlt-serve-models"}
RESOLVED = {SERVE: ["serve", "sign"], GPU: ["gpu", "sign"], DEV: ["dev", "encoder", "ray"]}


def wanted(extra: str) -> list[Requirement]:
    """What the base and an extra ask for, through `xlt-serve[…]`."""
    out = list(map(Requirement, PROJECT["dependencies"]))
    for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
        if requirement.name == PROJECT["name"]:
            out += [each for more in requirement.extras for each in wanted(more)]
        else:
            out.append(requirement)
    return [each for each in out if each.name not in OURS]


def named(*files: Path) -> dict[str, Pin]:
    return {pin.name: pin for file in files for pin in pins(file) if pin.here()}


@pytest.mark.parametrize("file", [SERVE, GPU, DEV, DOCS, TORCH], ids=lambda file: file.name)
def test_every_pin_has_hashes_and_no_line_names_an_index(file: Path) -> None:
    for pin in pins(file):
        assert pin.hashes, pin.name
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in pin.hashes), pin.name
    text = file.read_text()
    assert not re.search(r"://|^\s*-[^-]|--(index|extra|find|trusted)", text, re.MULTILINE)
    assert not re.search(r"(^|[\s'\"=])/\w", text)


@pytest.mark.parametrize("file", RESOLVED, ids=lambda file: file.name)
def test_a_lock_fits_what_is_declared(file: Path) -> None:
    """Else: `make lock`."""
    found = named(TORCH, file)
    for extra in RESOLVED[file]:
        for requirement in wanted(extra):
            name = canonicalize_name(requirement.name)
            assert name in found, f"{name} is not in {file.name}: make lock"
            assert found[name].version in requirement.specifier, f"{requirement}: make lock"
    assert "setuptools" in found  # builds what is ours, without a look at a registry
    assert not OURS & set(found)


@pytest.mark.parametrize("file", [SERVE, GPU], ids=lambda file: file.name)
def test_serving_has_the_versions_that_are_tested_and_nothing_of_training(file: Path) -> None:
    tested = named(DEV)
    for name, pin in named(file).items():
        assert name not in tested or tested[name] == pin
    assert not {"torch", "transformers", "optimum", "onnx"} & set(named(file))


def test_the_lock_of_the_docs_has_what_builds_them_and_nothing_of_ours() -> None:
    found = named(DOCS)
    for requirement in map(Requirement, PROJECT["optional-dependencies"]["docs"]):
        assert found[requirement.name].version in requirement.specifier, "make lock"
    assert not {"numpy", "tokenizers"} & set(found)


def test_torch_is_a_build_for_cpus() -> None:
    """Of the registry's files for Linux none: pip would take it, and want CUDA packages that no lock has."""
    linux, elsewhere = pins(TORCH)
    assert 'sys_platform == "linux"' in linux.marker
    assert not set(linux.hashes) & set(elsewhere.hashes)
    (told,) = FILE["tool"]["uv"]["dependency-metadata"]
    assert (told["name"], told["version"]) == (linux.name, linux.version)
    assert linux.version == elsewhere.version
    assert not any(name.startswith(("cuda", "triton")) for name in named(DEV))


def test_what_is_installed_is_what_is_locked() -> None:
    """In an environment of `make setup`."""
    if not (ROOT / ".venv" / "installed").exists():
        pytest.skip("another environment")
    for name, pin in named(TORCH, DEV).items():
        assert importlib.metadata.version(name).partition("+")[0] == pin.version, name
