"""What the wheels install: code of our own names in one, models in the other."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests import ROOT
from tests.wheels import MODELS, main_wheel
from xlt_serve.bench.server_process import free_port

LARGEST = 1_000_000
TABLE = "xlt_serve/text/languages/table.bin"  # language identification, for any bundle: 1.4 MB
BESIDE = {"pyproject.toml", "LICENSE"}  # of the models: they describe the wheel, and are not in it
WITHOUT_MODELS = "import sys; sys.modules['xlt_serve_models'] = None; "


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return main_wheel(tmp_path_factory)


@pytest.fixture(scope="session")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The main wheel, installed as far as files go."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def listed(*folders: str) -> set[str]:
    """Files that git knows."""
    if not (ROOT / ".git").exists():
        pytest.skip("no clone: git can't say which files are the project's")
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in done.stdout.splitlines() if (ROOT / name).exists()}


def ran(code: list[str], cwd: Path, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *code],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path, "BENTOML_DO_NOT_TRACK": "true"},
        capture_output=True,
        text=True,
    )


def run(code: list[str], cwd: Path, path: str) -> str:
    done = ran(code, cwd, path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_two_packages_and_all_of_their_files(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    present = {name.removeprefix("training/") for name in listed("xlt_serve", "training")}
    assert {name.split("/")[0] for name in packed} == {"xlt_serve", "xlt_training"}
    beside = ("xlt_serve/models/", "sample/")  # a distribution of their own; data for the README
    assert packed == {name for name in present if not name.startswith(beside)}
    assert "xlt_serve/py.typed" in packed


def test_the_wheel_is_light(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel).infolist()
    assert [file.filename for file in files if file.file_size > LARGEST] == [TABLE]
    assert wheel.stat().st_size < 3 * LARGEST


def test_the_source_archive_is_light_too(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE", "xlt_serve", "training"):
        (tmp_path / name).symlink_to(ROOT / name)
    code = "from setuptools import build_meta; print(build_meta.build_sdist('.'))"
    made = run(["-c", code], tmp_path, "").splitlines()[-1]
    with tarfile.open(tmp_path / made) as archive:
        sizes = {file.name.partition("/")[2]: file.size for file in archive}
    assert [name for name, size in sizes.items() if size > LARGEST] == [TABLE]
    assert not any(name.startswith(("xlt_serve/models/", "tests/")) for name in sizes)


def test_the_models_are_all_in_their_wheel() -> None:
    """By its patterns: it takes long to pack. tests/end_to_end/test_install.py does."""
    table = tomllib.loads((MODELS / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = [*table["package-data"]["xlt_serve_models"], "*.py"]
    packed = {file for pattern in patterns for file in MODELS.glob(pattern)}
    known = {ROOT / name for name in listed("xlt_serve/models")}
    assert packed >= {file for file in known if file.name not in BESIDE}


def test_both_have_the_licence(wheel: Path) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())
    assert (MODELS / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("source", ["clone", "wheel"])
def test_a_folder_called_training_shadows_nothing(source: str, site: Path, tmp_path: Path) -> None:
    """In the working directory, which Python searches first."""
    path = f"{ROOT}:{ROOT / 'training'}"
    if source == "wheel":
        (tmp_path / "more").mkdir()
        (tmp_path / "more" / "xlt_serve_models").symlink_to(MODELS)
        path = f"{tmp_path / 'more'}:{site}"
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    code = "import xlt_training.exporting, xlt_serve; print(xlt_training.__file__)"
    found = run(["-c", code], tmp_path, path).strip()
    assert Path(found).is_relative_to(path.split(":")[-1])
    assert "topics" in run(["-m", "xlt_serve.cli", "inspect", "topics"], tmp_path, path)
    assert "--data" in run(["-m", "xlt_training.encoders.make_paired", "--help"], tmp_path, path)


@pytest.mark.parametrize(
    "code",
    [
        "import xlt_serve; xlt_serve.load()",
        "import xlt_serve; xlt_serve.load('topics')",
        "from xlt_serve.cli.main import main; sys.exit(main(['serve', '--port', 'PORT']))",
        "from xlt_serve.cli.main import main; sys.exit(main(['inspect', 'topics']))",
        "from xlt_training.loop import pretrained; pretrained.resolve('small')",
    ],
)
def test_without_the_models_one_is_told_what_to_install(
    code: str, site: Path, tmp_path: Path
) -> None:
    code = WITHOUT_MODELS + code.replace("PORT", str(free_port()))
    done = ran(["-c", code], tmp_path, str(site))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "pip install xlt-serve-models" in done.stderr
