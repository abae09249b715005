"""What is built without a network serves, under the names that were given."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests import ROOT
from tests.xlt_serve.serving.conftest import copied
from xlt_serve.bench.server_process import free_port, started
from xlt_serve.deploy import bento, recipes
from xlt_serve.errors import DependencyError
from xlt_serve.signing import key_files, signatures

ADMIN = "a" * 16


def offline(home: Path) -> dict[str, str]:
    found = os.environ | {"BENTOML_HOME": str(home), "PYTHONPATH": str(ROOT)}
    found |= {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1", "HTTPS_PROXY": "http://127.0.0.1:9"}
    for name in ("PROMETHEUS_MULTIPROC_DIR", key_files.REQUIRED, "XLT_BUNDLES"):
        found.pop(name, None)
    return found


def signed(folder: Path, key: Path) -> Path:
    manifest = (folder / "bundle.json").read_bytes()
    signatures.add(folder, signatures.sign(manifest, key_files.read_private(key)))
    return folder


@pytest.mark.slow
def test_the_repository_s_bentofile_is_built_offline_and_serves(tmp_path: Path) -> None:
    if shutil.which("uv") is None and not (Path(sys.executable).parent / "uv").exists():
        pytest.skip("bentoml build needs uv, which it would install from the network")
    environment = offline(tmp_path / "home")
    del environment["PYTHONPATH"]
    built = subprocess.run(
        [sys.executable, "-m", "bentoml", "build", "--version", "test"],
        cwd=ROOT,
        env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    made = tmp_path / "home" / "bentos" / "xlt-serve" / "test"
    inside = {path.name for path in (made / "src").iterdir()}
    assert inside == {"bentofile.yaml", "xlt_serve"}
    installed = (made / "env" / "python" / "requirements.txt").read_text()
    assert installed.count("--hash=sha256:") > 500
    dockerfile = (made / "env" / "docker" / "Dockerfile").read_text()
    assert f"\nFROM {recipes.BASE} " in dockerfile
    port = free_port()
    command = [sys.executable, "-m", "bentoml", "serve", "xlt-serve:test", "--port", str(port)]
    environment["XLT_STATE"] = str(tmp_path / "state")
    with started(
        "the bento", command, port, tmp_path / "log", environment=environment, folder=tmp_path
    ) as running:
        asked = {"texts": ["Die Mannschaft gewann das Finale."]}
        got = httpx.post(f"{running.url}/classify", json=asked, timeout=20).json()
        assert got["predictions"][0]["label"] == "sports"


@pytest.mark.slow
def test_a_bento_is_built_offline_from_the_lock_and_serves(tmp_path: Path) -> None:
    if shutil.which("uv") is None and not (Path(sys.executable).parent / "uv").exists():
        pytest.skip("bentoml build needs uv, which it would install from the network")
    environment = offline(tmp_path / "home")
    public, _ = key_files.write_new(tmp_path / "key.pem")
    first = signed(copied(tmp_path / "first", "the first"), tmp_path / "key.pem")
    then = signed(copied(tmp_path / "then", "the second"), tmp_path / "key.pem")
    call = [sys.executable, "-m", "xlt_serve.cli", "build", f"sujets={first}", "--out", "ship"]
    call += ["--require-signature", str(public)]
    for _ in range(2):  # the second time the bento is there, and its folder is replaced
        built = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert built.returncode == 0, built.stdout + built.stderr
    tag = built.stdout.splitlines()[0].split()[1]
    made = tmp_path / "home" / "bentos" / tag.replace(":", "/")
    shutil.rmtree(tmp_path / "ship")  # the bento needs nothing of it
    inside = {path.name for path in (made / "src").iterdir()}
    assert inside == {"bentofile.yaml", "bundles", "signers.pub", "xlt_bento.py", "xlt_serve"}
    installed = (made / "env" / "python" / "requirements.txt").read_text()
    assert installed.count("--hash=sha256:") > 500
    port = free_port()
    command = [sys.executable, "-m", "bentoml", "serve", tag, "--port", str(port)]
    del environment["PYTHONPATH"]
    environment |= {"XLT_ADMIN_KEYS": ADMIN, "XLT_STATE": str(tmp_path / "state")}
    with started(
        "the bento", command, port, tmp_path / "log", environment=environment, folder=tmp_path
    ) as running:
        text = "Die Mannschaft gewann das Finale."
        got = httpx.post(f"{running.url}/classify", json={"texts": [text]}, timeout=20).json()
        assert got["predictions"][0]["label"] == "sports"
        assert got["bundle"]["name"] == "sujets"
        # What ships is not in it; where the models are installed beside, it is not signed.
        for bundle, statuses in ((then, [200]), ("topics", [404, 422])):
            swap = {"name": "sujets", "bundle": str(bundle)}
            told = httpx.post(
                f"{running.url}/models", json=swap, headers={"X-API-Key": ADMIN}, timeout=120
            )
            assert told.status_code in statuses, told.text
        unsigned = {"name": "sujets", "bundle": str(copied(tmp_path / "unsigned", "nobody's"))}
        told = httpx.post(
            f"{running.url}/models", json=unsigned, headers={"X-API-Key": ADMIN}, timeout=120
        )
        assert told.status_code == 422
        assert "is not signed" in told.text
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0


@pytest.mark.parametrize("name", bento.BACKENDS)
def test_bentoml_s_builders_take_build_arguments(name: str) -> None:
    from bentoml.container import get_backend

    given = get_backend(name).construct_build_args(
        context_path=".", build_arg={"BASE_DIGEST": "sha256:0"}
    )
    assert "--build-arg BASE_DIGEST=sha256:0" in " ".join(given)


def test_without_a_builder_the_error_says_what_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bento.shutil, "which", lambda name: None)
    with pytest.raises(
        DependencyError, match=r"xlt:1: can't be built here: there is none of docker"
    ):
        bento.containerize(tmp_path, "xlt:1")


def test_a_builder_that_does_not_answer_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def health(name: str) -> bool:
        if name == "docker":
            raise subprocess.CalledProcessError(1, ["docker", "version"])
        return name != "nerdctl"

    def backend(name: str) -> SimpleNamespace:
        def build(*, context_path: str, file: str, tag: tuple[str, ...], **more: Any) -> None:
            assert (context_path, file) == (str(tmp_path), str(tmp_path / "Dockerfile"))
            built.extend([name, *tag, *more.pop("build_arg", {}).values()])
            assert not more

        return SimpleNamespace(build=build)

    fake = SimpleNamespace(health=health, get_backend=backend)
    monkeypatch.setattr(bento, "needed", lambda *_: fake)
    monkeypatch.setattr(bento.shutil, "which", lambda name: name)
    assert bento.containerize(tmp_path, "xlt:1") == "podman"
    assert built == ["podman", "xlt:1"]
    assert bento.containerize(tmp_path, "xlt:1", "sha256:0") == "podman"
    assert built[2:] == ["podman", "xlt:1", "sha256:0"]
    monkeypatch.setattr(bento, "BACKENDS", ("docker", "nerdctl"))
    with pytest.raises(
        DependencyError, match=r"docker: Command .*; nerdctl does not answer; the bento"
    ):
        bento.containerize(tmp_path, "xlt:1")
