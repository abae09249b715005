"""A report is made of its JSON alone: that of the recorded results is the recorded page."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import (
    accuracy,
    graphs,
    language,
    paired_report,
    robustness_report,
    scoring,
    service_report,
    soak,
)
from benchmarks.siege import report as siege_report
from tests import ROOT

REPORTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "accuracy-sib200": accuracy.markdown,
    "accuracy-xsid": accuracy.markdown,
    "graphs": graphs.markdown,
    "language": language.markdown,
    "paired": paired_report.markdown,
    "robustness": robustness_report.page,
    "scoring": scoring.markdown,
    "service": service_report.markdown,
    "siege": siege_report.markdown,
    "soak": soak.markdown,
}


@pytest.mark.parametrize("name", REPORTS)
def test_the_report_of_the_recorded_results_is_the_recorded_page(name: str) -> None:
    recorded = ROOT / "benchmarks" / "results" / f"{name}.json"
    if not recorded.is_file():
        pytest.skip("not recorded yet")
    made = REPORTS[name](json.loads(recorded.read_text(encoding="utf-8")))
    assert made == recorded.with_suffix(".md").read_text(encoding="utf-8")
