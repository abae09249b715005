"""What a config's author is told before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from xlt_training.loop import early, recipes

from tests import ROOT

CONFIG = """
encoder = "small"
[task]
name = "files"
train = "x.csv"
[[method]]
name = "xmixup"
copis = 3
[[stage]]
sellect = "last"
[stage.train]
epocs = 1
[[stage.method]]
name = "eer"
"""
CODE = """
import sys
sys.modules["torch"] = None
from xlt_serve.cli.main import main
for call in sys.argv[1:]:
    main(["train", *call.split(), "--out", "/nowhere/run"])
"""


def test_typos_are_told_without_torch(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(CONFIG)
    good = CONFIG.replace("copis = 3", "").replace("sellect", "select").replace("epocs", "epochs")
    (tmp_path / "good.toml").write_text(good.replace("eer", "ear"))
    calls = {
        "bad.toml": [
            "4 problems",
            "method[0].copis is not a known key",
            "stage[0].sellect is not a known key, did you mean 'select'?",
            "stage[0].train.epocs is not a known key, did you mean 'epochs'?",
            "stage[0].method[0].name = 'eer' is unknown, did you mean 'ear'?",
        ],
        "good.toml method.xmixup.copis=3": ["1 problem: method[0].copis is not a known key"],
        "--task sib200 train.epocs=3": ["train.epocs is not a known key, did you mean 'epochs'?"],
        "--task sib200 --method ear method.ear.alpa=1": ["[0].alpa is not", "'alpha'?"],
        "--task sib20": ["--task = 'sib20' is unknown, did you mean 'sib200'?"],
        "--task sib200 --method eer": ["--method = 'eer' is unknown, did you mean 'ear'?"],
        "--task sib200 --preset papr": ["--preset = 'papr' is unknown, did you mean 'paper'?"],
        "--task sib200 --method ear": ["torch"],  # nothing wrong: then it is asked for
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE, *calls],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT / 'training'}:{ROOT}"},
    )
    told = done.stderr.splitlines()
    assert len(told) == len(calls), done.stderr
    for line, (call, parts) in zip(told, calls.items(), strict=True):
        for part in parts:
            assert part in line, call


def test_what_ships_is_refused_nowhere() -> None:
    for task in recipes.tasks():
        for method in recipes.methods():
            early.check_named(task, [method], ["task.data=x", "seed=1"], "small")
