"""`make sbom`: what serving installs, in a form that others can check."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import ROOT
from tests.locks import CUDA, GPU, SERVE, pins

pytest.importorskip("cyclonedx_py", reason="of an environment before `make sbom`: make setup")


def recipe(name: str, out: Path) -> str:
    """The command of the Makefile, with this Python's tool."""
    told = subprocess.run(
        ["make", "-n", "-B", "-o", ".venv/installed", f"build/{name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.replace("\\\n", " ")
    (line,) = (line for line in told.splitlines() if "cyclonedx-py" in line)
    tool = f"{shlex.quote(sys.executable)} -m cyclonedx_py"
    line = line.replace(".venv/bin/cyclonedx-py", tool)
    return line.replace(f"build/{name}", shlex.quote(str(out)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "locks"), [("sbom.json", [SERVE]), ("sbom-gpu.json", [GPU, CUDA])]
)
def test_it_is_valid_and_names_what_is_locked(name: str, locks: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "sbom.json"
    command = recipe(name, out)
    assert "--validate" in command  # by the schema that the tool brings: a failure is an exit code
    subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, check=True)
    found = json.loads(out.read_text())
    assert found["bomFormat"] == "CycloneDX"
    assert found["metadata"]["component"]["name"] == "xlt-serve"
    listed = {
        (
            component["name"],
            component["version"],
            frozenset(
                digest["content"]
                for place in component["externalReferences"]
                for digest in place.get("hashes", ())
            ),
        )
        for component in found["components"]
    }
    models = tomllib.loads((ROOT / "xlt_serve" / "models" / "pyproject.toml").read_text())
    ours = ("xlt-serve-models", models["project"]["version"], frozenset[str]())
    locked = {
        (pin.name, pin.version, frozenset(pin.hashes)) for file in locks for pin in pins(file)
    }
    assert listed == locked | {ours}
