from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

from benchmarks import gpu, gpu_hour
from benchmarks.gpu_hour import Part
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
        ([tmp_path / "none"], "is no folder"),
        ([tmp_path] * 3, "takes a checkpoint and perhaps a data folder"),
        ([tmp_path], "nvidia-smi: is not there; run this on a machine with an NVIDIA GPU"),
        ([], "rehearse with DEVICE=cpu"),
    ):
        done = subprocess.run([script, *arguments], capture_output=True, text=True)
        assert done.returncode == 2
        assert says in done.stderr


def test_figures_come_before_tests_and_each_provider_is_a_part() -> None:
    parts = [part.name for part in gpu_hour.plan([], Path("work"), Path("out"), {})]
    assert parts.index("latency cuda") < parts.index("engines") < parts.index("latency tensorrt")
    assert parts[-1] == "tests"
    known: set[str] = set()
    for part in gpu_hour.plan([], Path("work"), Path("out"), {}):
        assert known.issuperset(part.needs), part
        known.add(part.name)


@pytest.mark.parametrize(("cuda", "wheel"), [(12.4, "<1.27"), (13.0, ">=1.28"), (None, ">=1.28")])
def test_the_wheel_is_one_that_the_driver_runs(cuda: float | None, wheel: str) -> None:
    calls = [" ".join(part.call) for part in gpu_hour.installation("python", cuda)]
    assert any("onnxruntime-gpu" in call and wheel in call for call in calls)
    assert f"tensorrt-cu{12 if cuda == 12.4 else 13}>=10.14,<11" in calls[-1]


def test_a_part_that_fails_hangs_or_lacks_another_is_written_down(tmp_path: Path) -> None:
    python = sys.executable
    parts = [
        Part("good", (python, "-c", "print('figure')"), 1),
        Part("bad", (python, "-c", "raise SystemExit('why')"), 1),
        Part("slow", (python, "-c", "import time; time.sleep(60)"), 0.005),
        Part("absent", (str(tmp_path / "no-such-program"),), 1),
        Part("after bad", (python, "-c", ""), 1, ("good", "bad")),
    ]
    done: list[gpu_hour.Done] = []
    for part in parts:
        done.append(gpu_hour.run(part, done))
        gpu_hour.write(tmp_path, done)
    report = json.loads((tmp_path / "gpu.json").read_text())
    states = {part["name"]: part["state"] for part in report["parts"]}
    assert states["good"] == "done"
    assert states["bad"] == "failed: 1"
    assert states["slow"].startswith("too slow")
    assert "No such file" in states["absent"]
    assert states["after bad"] == "skipped: without bad"
    page = (tmp_path / "gpu.html").read_text()
    assert "figure" in page
    assert "why" in page


@pytest.mark.slow
def test_the_whole_hour_on_the_cpu(encoders: dict[str, Path], tmp_path: Path) -> None:
    """Every step but the device, over a tiny encoder; engines can't be built, and the rest goes on."""
    settings = {
        "DEVICE": "cpu",
        "PYTHON": sys.executable,
        "OUT": str(tmp_path / "out"),
        "REPEATS": "2",
        "ROWS": "1,4",
        "SECONDS": "1",
        "TESTS": "tests/xlt_serve/runtime/gpu/test_buckets.py -n0",
    }
    call = [ROOT / "benchmarks" / "gpu.sh", encoders["xlm-roberta"]]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "training")))
    environment = {**os.environ, "PYTHONPATH": paths, **settings}
    done = subprocess.run(call, env=environment, capture_output=True, text=True)
    report = json.loads((tmp_path / "out" / "gpu.json").read_text())
    states = {part["name"]: part["state"] for part in report["parts"]}
    said = {part["name"]: part["said"] for part in report["parts"]}
    assert states.pop("engines") == "failed: 2"
    assert "xlt: libcuda.so.1: can't be loaded" in said["engines"]
    assert set(states.values()) == {"done"}, said
    assert list(states)[-1] == "tests"
    assert done.returncode == 1
    rows = report["figures"]["latency-cpu"]["rows"]
    assert {row["graph"] for row in rows} == {"plain", "perturbed", "paired"}
    assert all(row["same_labels"] for row in rows)
    assert report["figures"]["service"]["points"]
    assert "<td>paired" in (tmp_path / "out" / "gpu.html").read_text()
