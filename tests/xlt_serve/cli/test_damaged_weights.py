from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests import damage
from tests.damage import WORD
from xlt_serve import bundle as bundles
from xlt_serve.cli.main import main


@pytest.mark.parametrize(
    "flags", [[], ["--smooth", "--samples", "40", "--radius", "0.01"]], ids=len
)
def test_predict_says_which_line_has_no_finite_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: list[str]
) -> None:
    made = damage.without_word(bundles.load("topics"), tmp_path / "bundle", math.inf)
    file = tmp_path / "texts.txt"
    file.write_text(f"The team won.\nA {WORD} ran.\nRain all day.\n", encoding="utf-8")
    assert main(["predict", "--bundle", str(made.path), *flags, str(file)]) == 0
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["error"] is third["error"] is None
    assert second["error"]["code"] == "not_finite"
    assert second.get("certificate") is None


@pytest.mark.parametrize("flag", ["--scale=1e20", "--alpha=1e-300", "--radius=nan", "--scale=inf"])
def test_predict_refuses_what_leaves_the_floats(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str
) -> None:
    assert main(["predict", "--smooth", flag, str(tmp_path / "none.txt")]) == 2
    assert "must be" in capsys.readouterr().err
