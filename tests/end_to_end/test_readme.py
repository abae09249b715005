"""The README's examples, executed as they stand."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_transcript_runs(tmp_path: Path) -> None:
    """In a folder laid out like a clone; what it writes stays there."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "training").symlink_to(ROOT / "training")
    (transcript,) = blocks("console")
    commands = [line[2:] for line in transcript.splitlines() if line.startswith("$ ")]
    assert len(commands) == 5
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    outputs = []
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=project, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, (command, done.stderr)
        outputs.append(done.stdout)
    assert "labels      account 34, delivery 34" in outputs[0]
    scores = dict(re.findall(r"^([a-z]{2}) +24 +(0\.\d+)", outputs[3], re.MULTILINE))
    assert len(scores) == 11
    assert min(map(float, scores.values())) > 1 / 6  # the commonest label
    found = json.loads(outputs[4])
    assert (found["language"], found["label"]) == ("es", "payment")
    shutil.rmtree(project / "runs")


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in README


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("python")
    exec(compile(example, "README.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert " de " in first
    assert first.endswith("None")
    assert "empty" in second
