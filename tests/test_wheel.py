"""What the wheel installs: two packages of our own names, with all their files."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

from tests import ROOT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in a folder of links, as setuptools leaves files beside what it builds."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wheel"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            for name in ("pyproject.toml", "README.md", "LICENSE", "xlt_serve", "training"):
                (folder / name).symlink_to(ROOT / name)
            command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "."]
            subprocess.run([*command, "--no-build-isolation", "-w", "out"], cwd=folder, check=True)
    (file,) = (folder / "out").glob("*.whl")
    return file


def run(code: list[str], cwd: Path, path: str) -> str:
    done = subprocess.run(
        [sys.executable, *code],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path, "BENTOML_DO_NOT_TRACK": "true"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_two_packages_and_all_of_their_files(wheel: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no clone: git can't say which files are the project's")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = subprocess.run(
        ["git", "ls-files", "xlt_serve", "training"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    present = {name.removeprefix("training/") for name in listed if (ROOT / name).exists()}
    assert {name.split("/")[0] for name in packed} == {"xlt_serve", "xlt_training"}
    assert present - packed == set()


def test_the_wheel_has_the_licence(wheel: Path) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize("source", ["clone", "wheel"])
def test_a_folder_called_training_shadows_nothing(source: str, wheel: Path, tmp_path: Path) -> None:
    """In the working directory, which Python searches first."""
    path = f"{ROOT}:{ROOT / 'training'}"
    if source == "wheel":
        zipfile.ZipFile(wheel).extractall(tmp_path / "site")
        path = str(tmp_path / "site")
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    code = "import xlt_training.export, xlt_serve; print(xlt_training.__file__)"
    found = run(["-c", code], tmp_path, path).strip()
    assert Path(found).is_relative_to(path.split(":")[-1])
    assert "topics" in run(["-m", "xlt_serve.cli", "inspect", "topics"], tmp_path, path)
    assert "--data" in run(["-m", "xlt_training.encoders.make_paired", "--help"], tmp_path, path)
