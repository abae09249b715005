"""The model card says what the manifest says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from xlt_training.exporting.card import NAME, card

from xlt_serve import bundle as bundles


def test_every_bundle_has_one_and_it_is_hashed(bundle: Path) -> None:
    manifest = bundles.load(bundle).manifest
    assert NAME in manifest.files
    text = (bundle / NAME).read_text()
    assert text == card(manifest)
    for language, row in manifest.scores["dev"].items():
        assert f"| {language} | {row['count']:.0f} | {row['accuracy']:.3f} |" in text
    assert all(label in text for label in manifest.labels)
    assert text.startswith("---\nlibrary_name: xlt-serve\n")


def test_what_nobody_knows_is_said(bundle: Path) -> None:
    manifest = bundles.load(bundle).manifest
    bare = card(replace(manifest, scores={}, calibration={}, noise={}, method={}))
    assert "Nobody has judged it" in bare
    assert "methods: unknown" in bare
    answered = {"threshold": 0.7, "coverage": 0.25, "error": 0.125}
    told = card(
        replace(
            manifest,
            scores={
                "dev": {"en": {"accuracy": 0.6, "count": 30, "there": 2490, "answered": answered}}
            },
            calibration={"plain": {"abstain_below": 0.7}},
            checks={"trimmed": {"languages": ["en", "de"]}},
            pair=True,
        )
    )
    assert "| en | 30 of 2,490 | 0.600 |  |  | 25.0% | 12.5% |" in told
    assert "no label below a probability of 0.700" in told
    assert "Scripts that en, de don't use" in told
    assert '("a text", "another")' in told
