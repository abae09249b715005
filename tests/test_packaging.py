from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT
from xlt_serve.runtime.gpu.providers import RUNTIMES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def closure(names: list[str]) -> set[str]:
    """Distributions that requirements pull in, through the metadata of what is installed."""
    found: set[str] = set()
    todo = [Requirement(name) for name in names]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in found:
            continue
        found.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # onnxruntime-gpu is never installed beside onnxruntime
        for text in needs:
            need = Requirement(text)
            environments = [{"extra": extra} for extra in (*requirement.extras, "")]
            if need.marker is None or any(
                need.marker.evaluate(default_environment() | extra) for extra in environments
            ):
                todo.append(need)
    return found


@pytest.mark.parametrize(("extra", "runtime"), [("serve", RUNTIMES[0]), ("gpu", RUNTIMES[1])])
def test_each_serving_extra_brings_exactly_one_runtime(extra: str, runtime: str) -> None:
    wanted = PROJECT["dependencies"] + PROJECT["optional-dependencies"][extra]
    found = closure(wanted)
    assert "xlt-serve-models" in found
    assert set(RUNTIMES) & found == {runtime}
    assert not {"torch", "transformers", "optimum", "onnx"} & found
    assert "bentoml" in found


@pytest.mark.parametrize("extra", ["", "client"])
def test_neither_the_base_nor_a_client_has_a_runtime_or_models(extra: str) -> None:
    wanted = PROJECT["dependencies"] + PROJECT["optional-dependencies"].get(extra, [])
    heavy = {*RUNTIMES, "torch", "transformers", "bentoml", "xlt-serve-models"}
    assert not heavy & closure(wanted)


@pytest.mark.slow
@pytest.mark.parametrize(("extra", "runtime"), [("serve", RUNTIMES[0]), ("gpu", RUNTIMES[1])])
def test_pip_resolves_each_serving_extra(extra: str, runtime: str, tmp_path: Path) -> None:
    probe = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path)]
    if subprocess.run([*probe, "py3langid"], capture_output=True).returncode:
        pytest.skip("the registry can't be reached")
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "-q"]
    done = subprocess.run(
        [*command, "--report", str(report), f"{ROOT / 'xlt_serve' / 'models'}", f"{ROOT}[{extra}]"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    names = {
        canonicalize_name(entry["metadata"]["name"])
        for entry in json.loads(report.read_text())["install"]
    }
    assert names & set(RUNTIMES) == {runtime}
    assert not names & {"torch", "transformers"}
