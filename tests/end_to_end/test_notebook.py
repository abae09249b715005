"""The notebook, its cells executed one after the other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "quickstart.ipynb"


def cells(kind: str) -> list[str]:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def test_no_output_is_committed() -> None:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in found)


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", "\n".join(cells("markdown")))
    assert links
    assert all((NOTEBOOK.parent / link).exists() for link in links)


@pytest.mark.slow
def test_the_cells_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder laid out like a clone; what they write stays there."""
    (tmp_path / "training").symlink_to(ROOT / "training")
    here = tmp_path / "docs" / "notebooks"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    names: dict[str, object] = {"__name__": "__main__"}
    printed = []
    for number, source in enumerate(cells("code")):
        exec(compile(source, f"cell {number}", "exec"), names)
        printed.append(capsys.readouterr().out)
    first, _, languages, bundle, predicted, error, judged = printed
    assert first.startswith("264 rows; ('en', 24)")
    accuracies = dict(re.findall(r"^(\w\w)  (\d\.\d\d)", languages, re.MULTILINE))
    assert len(accuracies) == 11
    assert min(map(float, accuracies.values())) > 1 / 6  # the commonest label
    assert "bundle.json" in bundle
    said = [line.split()[:2] for line in predicted.splitlines()]
    assert [language for _, language in said] == ["de", "es", "zh", "fr", "-"]
    assert [label for label, _ in said[1:]][::3] == ["payment", "-"]
    assert "empty" in error
    served = {name: int(n) for name, n in re.findall(r"'(\w\w)': '(\d+)/24'", judged)}
    assert served.keys() == accuracies.keys()
    # int8 may change a label here and there.
    assert all(abs(n / 24 - float(accuracies[name])) < 0.1 for name, n in served.items())
