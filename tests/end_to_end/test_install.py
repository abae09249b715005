"""Both wheels in empty environments, with what the locks name and nothing else; no clone in sight."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.locks import DEV, SERVE, TORCH
from tests.wheels import MODELS, main_wheel, models_wheel
from xlt_serve.bench.server_process import free_port, started

pytestmark = pytest.mark.slow

TEXT = "Die Mannschaft gewann das Finale."
LIGHT = 5_000_000


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for file in (main_wheel(tmp_path_factory), models_wheel(tmp_path_factory)):
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> None:
    call = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "py3langid", "-d"]
    if subprocess.run([*call, str(tmp_path_factory.mktemp("probe"))]).returncode:
        pytest.skip("the registry can't be reached")


def environment() -> Mapping[str, str]:
    """That of the tests without what they add to it."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PROMETHEUS_MULTIPROC_DIR", "VIRTUAL_ENV")
    }


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment(), capture_output=True, text=True
    )


def installed(folder: Path, *orders: list[str | Path]) -> Path:
    """The folder of commands of a new environment, after each order to pip."""
    venv.create(folder / "env", with_pip=True)
    programs = folder / "env" / "bin"
    for order in orders:
        done = run(programs / "python", "-m", "pip", "install", "-q", *order, cwd=folder)
        assert done.returncode == 0, done.stderr
    return programs


def ours(wheels: Path, extra: str) -> list[str | Path]:
    """With no index: all that the extra asks for is there already, or beside the wheel."""
    return ["--no-index", "--find-links", wheels, f"xlt-serve[{extra}]"]


def size(folder: Path) -> int:
    """Without what Python compiles."""
    files = (file for file in folder.rglob("*") if file.suffix != ".pyc")
    return sum(file.stat().st_size for file in files if file.is_file())


def test_the_models_are_in_their_wheel(wheels: Path) -> None:
    (file,) = wheels.glob("xlt_serve_models-*.whl")
    packed = zipfile.ZipFile(file)
    for source in (*MODELS.glob("topics*/*"), *MODELS.glob("encoders/*/*")):
        inside = packed.getinfo(f"xlt_serve_models/{source.relative_to(MODELS)}")
        assert inside.file_size == source.stat().st_size
    assert {name.split("/")[0] for name in packed.namelist() if ".dist-info" not in name} == {
        "xlt_serve_models"
    }


@pytest.mark.usefixtures("registry")
def test_a_client_is_light(wheels: Path, tmp_path: Path) -> None:
    programs = installed(tmp_path, ["--find-links", wheels, "xlt-serve[client]"])
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    assert not list(site.glob("xlt_serve_models*"))
    assert sum(size(folder) for folder in site.glob("xlt_*")) < LIGHT
    done = run(programs / "python", "-c", "from xlt_serve import Client, AsyncClient", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for call in (["-c", "import xlt_serve; xlt_serve.load()"], [programs / "xlt", "serve"]):
        refused = run(programs / "python", *call, cwd=tmp_path)
        assert refused.returncode != 0
        assert "pip install " in refused.stderr.splitlines()[-1]


@pytest.mark.usefixtures("registry")
def test_serving_from_the_lock_answers(wheels: Path, tmp_path: Path) -> None:
    locked: list[str | Path] = ["--require-hashes", "-r", SERVE]
    programs = installed(tmp_path, locked, ours(wheels, "serve"))
    assert run(programs / "python", "-m", "pip", "check", cwd=tmp_path).returncode == 0
    port = free_port()
    variables = {**environment(), "BENTOML_HOME": str(tmp_path), "BENTOML_DO_NOT_TRACK": "true"}
    command = [str(programs / "xlt"), "serve", "--port", str(port)]
    with started(
        "xlt serve", command, port, tmp_path / "log", environment=variables, folder=tmp_path
    ) as running:
        got = httpx.post(f"{running.url}/classify", json={"texts": [TEXT]}, timeout=60)
        assert got.json()["predictions"][0]["label"] == "sports"
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0


@pytest.mark.usefixtures("registry")
def test_training_from_the_lock_finds_its_encoder(wheels: Path, tmp_path: Path) -> None:
    locked: list[str | Path] = ["--require-hashes", "-r", TORCH, "-r", DEV]
    programs = installed(tmp_path, locked, ours(wheels, "train"))
    code = (
        "from xlt_training.loop import model, pretrained;"
        "place = pretrained.resolve('small'); pretrained.check(place);"
        "model.build('small', ['a', 'b'], 64); print(place)"
    )
    done = run(programs / "python", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.split()[-1]).is_relative_to(tmp_path / "env")
