"""The shipped bundle in other people's hands: optimum, transformers' tokenizer, bare onnxruntime.

In an environment of its own without this package, which the first run makes (minutes, pip).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import environments
from xlt_serve import load
from xlt_serve.text.tokens import Tokens

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
BUNDLE = HERE.parent.parent / "xlt_serve" / "models" / "topics"
TEXTS = [
    "The team won the final after extra time.",
    "Der Impfstoff schützt vor der Krankheit.",
    "Учёные открыли новую планету.",
    "球队在加时赛后赢得了决赛。",
    "政府は新しい法律を発表した。",
    "مدينة جميلة على ساحل البحر",
    "इस फ़िल्म को तीन पुरस्कार मिले।",
    "Η βουλή ψήφισε τον νόμο.",
]


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return environments.python("optimum")
    except environments.NotInstalled as reason:
        pytest.skip(f"optimum can't be installed here: {reason}")


@pytest.fixture(scope="module")
def ours() -> np.ndarray:
    """All texts in one batch, as the others run them."""
    classifier = load(BUNDLE)
    encoded = classifier.encoder.encode(TEXTS)
    pieces = [found.pieces[0] for found in encoded if isinstance(found, Tokens)]
    assert len(pieces) == len(TEXTS)
    return classifier.logits(pieces)


def run(python: Path, script: Path, folder: Path, texts: Sequence[str]) -> list[str]:
    """In an empty environment, so that nothing of this project is found by accident."""
    done = subprocess.run(
        [str(python), "-I", str(script), str(folder), *texts],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_optimum_opens_the_bundle(python: Path, ours: np.ndarray) -> None:
    lines = [json.loads(line) for line in run(python, HERE / "open_with_optimum.py", BUNDLE, TEXTS)]
    np.testing.assert_allclose([line["logits"] for line in lines], ours, atol=1e-4)
    labels = json.loads((BUNDLE / "bundle.json").read_text(encoding="utf-8"))["labels"]
    assert [line["label"] for line in lines] == [labels[row.argmax()] for row in ours]


def test_the_manuals_script_opens_the_bundle(
    python: Path, ours: np.ndarray, tmp_path: Path
) -> None:
    manual = (HERE.parent.parent / "docs" / "training.md").read_text(encoding="utf-8")
    script = tmp_path / "bare.py"
    script.write_text(manual.partition("```py\n")[2].partition("```")[0], encoding="utf-8")
    lines = [line.split(" ") for line in run(python, script, BUNDLE, TEXTS)]
    np.testing.assert_allclose([[float(v) for v in line[-7:]] for line in lines], ours, atol=1e-4)
