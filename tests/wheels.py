"""The wheels of this repository's two distributions, built once in a run of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from filelock import FileLock

from tests import ROOT

MODELS = ROOT / "xlt_serve" / "models"


def main_wheel(factory: pytest.TempPathFactory) -> Path:
    names = ("pyproject.toml", "README.md", "LICENSE", "xlt_serve", "training")
    return built(factory, "main", (ROOT / name for name in names))


def models_wheel(factory: pytest.TempPathFactory) -> Path:
    return built(factory, "models", MODELS.iterdir())


def built(factory: pytest.TempPathFactory, name: str, sources: Iterable[Path]) -> Path:
    """In a folder of links, as setuptools leaves files beside what it builds."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"wheel-{name}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            for source in sources:
                (folder / source.name).symlink_to(source)
            command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "."]
            subprocess.run([*command, "--no-build-isolation", "-w", "out"], cwd=folder, check=True)
    (file,) = (folder / "out").glob("*.whl")
    return file
