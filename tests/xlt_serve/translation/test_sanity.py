"""What is kept out of recorded translations, beyond what serving refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.files.rows import read_rows
from xlt_serve.translation.sanity import flaw, nonsense, strict_flaw

ENGLISH = "The team won the final on penalties after a long evening."
GERMAN = "Die Mannschaft gewann das Finale nach einem langen Abend im Elfmeterschießen."
DANISH = "Holdet vandt finalen på straffespark efter en meget lang aften."


def kind(text: str, translation: str, target: str, source: str = "") -> str | None:
    found = strict_flaw(text, translation, target, source)
    return found and found.kind


def test_a_translation_is_in_the_language_that_was_asked_for() -> None:
    assert kind(ENGLISH, GERMAN, "de", "en") is None
    assert kind(ENGLISH, GERMAN, "fr", "en") == "language"
    assert kind(ENGLISH, GERMAN, "de-AT", "en") is None
    assert kind(ENGLISH, DANISH, "da", "en") is None  # which the short table takes for Dutch
    assert kind(DANISH, ENGLISH + " And so on.", "da", "en") == "language"
    assert kind(ENGLISH, GERMAN, "qq", "en") is None  # nobody knows it: nothing is said


def test_a_copy_is_one_of_more_than_a_name() -> None:
    assert kind(ENGLISH, ENGLISH.upper(), "de", "en") == "copy"
    assert kind("Barack Obama", "Barack Obama", "de", "en") is None
    assert kind("2019", "2019", "de", "en") is None


@given(st.text("abcdeäßж中ค", min_size=2, max_size=9), st.integers(4, 20))
def test_what_repeats_itself_is_found_without_spaces_too(unit: str, times: int) -> None:
    found = kind("x" * 60, unit * times, "qq")
    assert found in ("repetition", "length")


@given(st.text(), st.text())
def test_what_serving_refuses_recording_does_too(text: str, translation: str) -> None:
    refused = flaw(text, translation, "en")
    assert nonsense(text, translation, "en") == (refused and refused.rule)
    if refused:
        assert strict_flaw(text, translation, "en", "de") == refused


@pytest.mark.real
def test_real_translations_pass_and_damaged_ones_do_not(data: Path) -> None:
    """Recorded ones of SIB-200; the same with their text, or French, in their place."""
    texts = {row["id"]: row["text"] for row in read_rows(data / "sib200" / "train-en.tsv")}
    french = {row["id"]: row["text"] for row in read_rows(data / "sib200" / "train-fr.tsv")}
    for language in ("de", "zh", "hi"):
        rows = read_rows(data / "sib200" / "mt" / f"en-{language}.train.tsv")[::10]
        found = [kind(texts[row["id"]], row["text"], language, "en") for row in rows]
        assert found == [None] * len(rows)
        for row in rows:
            text = texts[row["id"]]
            assert kind(text, text, language, "en") in ("copy", "language")
            assert kind(text, french[row["id"]], language, "en") == "language"
