"""What ``xlt inspect`` and ``xlt export`` say of a bundle's quality."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from xlt_serve import bundle as bundles
from xlt_serve.cli.inspect import quality


def test_what_is_left_unanswered_and_where_nobody_looked_is_told(bundle: Path) -> None:
    manifest = bundles.load(bundle).manifest
    answered = {"threshold": 0.7, "coverage": 0.25, "error": 0.125}
    found = quality(
        replace(
            manifest,
            scores={
                "dev": {"en": {"accuracy": 0.6, "count": 300, "there": 2490, "answered": answered}}
            },
            calibration={"plain": {"abstain_below": 0.7, "target_error": 0.2}},
            checks={"trimmed": {"languages": ["en", "de"]}},
        )
    )
    assert found["dev"] == "en 0.60"
    assert found["dev rows"] == "en 300 of 2,490 (drawn, of each label its share)"
    assert found["languages"].startswith("judged in en alone")
    assert found["abstains"] == "below 0.700, for 20% errors in en"
    assert found["answers dev"] == "en 25% (12% wrong)"
    assert found["trimmed"].startswith("to the scripts of en, de")
    assert quality(replace(manifest, scores={}, calibration={}, checks={}))["languages"].startswith(
        "not judged"
    )
