"""Smoothing by synonyms over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.xlt_serve.serving.conftest import Start, valid
from xlt_serve import load
from xlt_serve.modes.smoothed import Smoothed, Smoothing
from xlt_serve.serving import settings
from xlt_serve.types import Settings

ASKED: dict[str, Any] = {
    "texts": ["the goal", "bread"],
    "mode": "smoothed",
    "noise": "synonym",
    "words": 1,
    "language": "en",
    "seed": 5,
    "samples": 500,
}


def test_the_service_has_the_tables_it_was_started_with(
    bundle: Path, start: Start, tmp_path: Path
) -> None:
    file = tmp_path / "en.json"
    file.write_text(json.dumps({"goal": ["score"], "score": ["goal"], "bread": ["soup"]}))
    bundles = {"toy": str(bundle)}
    refused = start(bundles=bundles).post("/classify", json=ASKED)
    assert refused.status_code == 422
    assert "has no table of synonyms" in refused.json()["error"]["message"]
    given = settings.read({"XLT_SYNONYMS": settings.joined({"en": file})})
    with_tables = start(bundles=bundles, synonyms=given.synonyms)
    answer = valid("Answer", with_tables.post("/classify", json=ASKED).json())
    refused = with_tables.post("/classify", json=ASKED | {"language": "de"})
    assert refused.status_code == 422
    assert "language=de: has no table" in refused.json()["error"]["message"]
    refused = with_tables.post("/classify", json=ASKED | {"language": ["de", "en"]})
    assert refused.status_code == 422
    assert "is of one language" in refused.json()["error"]["message"]
    expected = load(bundle, synonyms={"en": file}).predict(
        ASKED["texts"],
        mode="smoothed",
        language="en",
        smoothing=Smoothing(500, noise="synonym", words=1, seed=5),
    )
    assert answer["predictions"] == [p.to_dict() for p in expected]


@pytest.mark.parametrize(
    ("language", "noise", "expected"),
    [(None, "synonym", True), ("en", "synonym", False), (None, None, False)],
)
def test_items_of_detected_languages_may_be_errors(
    bundle: Path, tmp_path: Path, language: str | None, noise: str | None, expected: bool
) -> None:
    """A language without a table is the item's error, which is short: such an answer is not refused
    as too large before it is known."""
    file = tmp_path / "en.json"
    file.write_text(json.dumps({"goal": ["score"], "score": ["goal"]}))
    context = load(bundle, synonyms={"en": file}).context
    settings = Settings("smoothed", language=language, options=Smoothing(500, noise=noise))
    assert Smoothed().may_fail(context, settings) == expected
