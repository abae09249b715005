"""The README's examples, executed as they stand."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.xlt_serve.serving.processes import serving

MOST_CPU = 300  # seconds of all processes: a busy machine takes longer, but computes no more
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def cpu_seconds() -> float:
    """Of all processes that this one started and that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(command: str, project: Path) -> str:
    """What a command prints; one that computes on and on is ended."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_WAIT_POLICY": "passive",  # a thread that waits for another would count as computing
    }
    done = subprocess.run(
        ["bash", "-c", f"ulimit -t {MOST_CPU}\n{command}"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def asked(url: str, text: str, project: Path) -> Any:
    """The answer to the README's request, with another address and another text."""
    (command,) = (block for block in blocks("sh") if "curl" in block)
    body = re.search(r"-d '(.*)'", command)
    assert body
    assert "localhost:3000" in command
    own = json.dumps({"texts": [text]}, ensure_ascii=False)
    return json.loads(run(command.replace("localhost:3000", url).replace(body[1], own), project))


@pytest.mark.slow
def test_the_transcript_runs_and_what_it_made_is_served(tmp_path: Path) -> None:
    """In a folder laid out like a clone; what it writes stays there."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "training").symlink_to(ROOT / "training")
    (transcript,) = blocks("console")
    commands = [line[2:] for line in transcript.splitlines() if line.startswith("$ ")]
    assert len(commands) == 5
    before = cpu_seconds()
    outputs = [run(command, project) for command in commands]
    assert "labels      account 34, delivery 34" in outputs[0]
    scores = dict(re.findall(r"^([a-z]{2}) +24 +(0\.\d+)", outputs[3], re.MULTILINE))
    assert len(scores) == 11
    assert min(map(float, scores.values())) > 1 / 6  # the commonest label
    found = json.loads(outputs[4])
    assert (found["language"], found["label"]) == ("es", "payment")
    served = re.search(r"^`xlt serve (.+?)` serves it", README, re.MULTILINE)
    assert served
    with serving(project, *shlex.split(served[1])) as running:
        answer = asked(running.url, shlex.split(commands[4])[1], project)
    assert answer["bundle"] == {"name": "shop", "version": found["version"]}
    [prediction] = answer["predictions"]
    assert (prediction["language"], prediction["label"]) == ("es", "payment")
    assert prediction["probabilities"] == pytest.approx(found["probabilities"], abs=1e-5)
    assert cpu_seconds() - before < MOST_CPU
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
