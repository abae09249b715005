"""``bentoml build`` without a network makes a bento that serves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from tests import ROOT
from xlt_serve.bench.server_process import free_port, started


@pytest.mark.slow
def test_a_bento_is_built_offline_and_serves(tmp_path: Path) -> None:
    if shutil.which("uv") is None and not (Path(sys.executable).parent / "uv").exists():
        pytest.skip("bentoml build needs uv, which it would install from the network")
    environment = os.environ | {"BENTOML_HOME": str(tmp_path / "home"), "PIP_NO_INDEX": "1"}
    for name in ("PYTHONPATH", "PROMETHEUS_MULTIPROC_DIR"):
        environment.pop(name, None)
    built = subprocess.run(
        [sys.executable, "-m", "bentoml", "build", "--version", "test"],
        cwd=ROOT,
        env=environment | {"HTTPS_PROXY": "http://127.0.0.1:9", "UV_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    bento = tmp_path / "home" / "bentos" / "xlt-serve" / "test"
    inside = {path.name for path in (bento / "src").iterdir()}
    assert "xlt_serve" in inside
    assert "training" not in inside
    port = free_port()
    command = [sys.executable, "-m", "bentoml", "serve", "xlt-serve:test", "--port", str(port)]
    with started(
        "the bento", command, port, tmp_path / "log", environment=environment, folder=tmp_path
    ) as running:
        text = "Die Mannschaft gewann das Finale."
        got = httpx.post(f"{running.url}/classify", json={"texts": [text]}, timeout=20)
        assert got.json()["predictions"][0]["label"] == "sports"
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0


def test_the_recipes_agree_with_the_service() -> None:
    """Probes, variables and packages that the examples name are there."""
    deploy = ROOT / "xlt_serve" / "deploy"
    manifests = list(yaml.safe_load_all((deploy / "kubernetes.yaml").read_text()))
    container = manifests[0]["spec"]["template"]["spec"]["containers"][0]
    settings = (ROOT / "xlt_serve" / "serving" / "settings.py").read_text()
    for variable in container["env"]:
        assert variable["name"].removesuffix("_FILE") in settings
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in ("/readyz", "/livez")
    grace = manifests[0]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > int(next(v["value"] for v in container["env"] if v["name"] == "XLT_TIMEOUT"))
    plain = yaml.safe_load((ROOT / "bentofile.yaml").read_text())
    gpu = yaml.safe_load((deploy / "bentofile.gpu.yaml").read_text())
    cpu_packages = {package.split(">")[0] for package in plain["python"]["packages"]}
    gpu_packages = {package.split(">")[0] for package in gpu["python"]["packages"]}
    assert gpu_packages - cpu_packages == {"onnxruntime-gpu", "tensorrt-cu12", "nvidia-ml-py"}
    assert cpu_packages - gpu_packages == {"onnxruntime"}
