from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import onnxruntime
import pytest

from benchmarks import gpu
from tests.conftest import ROOT


def test_percentiles_and_ratios() -> None:
    found = gpu.summary([1.0, 2.0, 3.0, 10.0])
    assert found["p50"] == 2.5
    assert found["max"] == 10
    shape = {"rows": 8, "length": 64}
    rows = [shape | {"provider": "cpu", "p50": 8.0}, shape | {"provider": "cuda", "p50": 2.0}]
    assert [row["times_faster_than_cpu"] for row in gpu.with_ratios(rows)] == [1.0, 4.0]
    (alone,) = gpu.with_ratios([shape | {"provider": "cuda", "p50": 2.0}])
    assert alone["times_faster_than_cpu"] is None


def test_the_cpu_alone_makes_a_report(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    asked = ["--providers", "cpu", "--repeats", "2", "--warm-up", "1", "--rows", "1,4"]
    assert gpu.main([str(bundle), *asked, "--out", str(out)]) == 0
    results = json.loads(out.read_text())
    assert {(row["rows"], row["length"]) for row in results["rows"]} >= {(1, 64), (4, 64)}
    assert all(row["same_labels"] and row["p50"] > 0 for row in results["rows"])
    assert "| cpu | plain | 4 × 64 |" in out.with_suffix(".md").read_text()


def test_a_missing_provider_is_refused_at_once(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    assert gpu.main([str(bundle), "--out", str(tmp_path / "gpu.json")]) == 1
    assert "gpu: cuda: is not in this onnxruntime" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_script_is_valid_and_refuses_machines_without_a_gpu(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "gpu.sh"
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a GPU")
    for arguments, says in (
        ([], "needs a checkpoint"),
        ([tmp_path / "none"], "is no checkpoint folder"),
        ([tmp_path], "nvidia-smi: is not there; run this on a machine with an NVIDIA GPU"),
    ):
        done = subprocess.run([script, *arguments], capture_output=True, text=True)
        assert done.returncode == 2
        assert says in done.stderr
