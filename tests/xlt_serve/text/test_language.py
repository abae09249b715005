from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.text.language import BITS, FOLDER, detect, features, logits, table


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The committee will publish its report next week.", "en"),
        ("Der Ausschuss veröffentlicht seinen Bericht nächste Woche.", "de"),
        ("Комитет опубликует свой доклад на следующей неделе.", "ru"),
        ("Комитетът ще публикува доклада си следващата седмица.", "bg"),
        ("委员会将于下周发表报告。", "zh"),
        ("ستنشر اللجنة تقريرها الأسبوع المقبل.", "ar"),
        ("کمیٹی اگلے ہفتے اپنی رپورٹ شائع کرے گی۔", "ur"),
        ("समिति अगले सप्ताह अपनी रिपोर्ट प्रकाशित करेगी।", "hi"),
        ("Kamati itachapisha ripoti yake wiki ijayo.", "sw"),
    ],
)
def test_languages_are_recognised(text: str, language: str) -> None:
    assert detect(text).language == language


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Das ist gut", "de"),
        ("Привет мир", "ru"),
        ("Il gatto", "it"),
        ("ありがとう", "ja"),
        ("不错", "zh"),
        ("Karibu sana", "sw"),
    ],
)
def test_two_words_are_often_enough(text: str, language: str) -> None:
    assert detect(text).language == language


@pytest.mark.parametrize(
    "text", ["", "12:30", "🙂🙂", "…", "https://example.org/der/die/das", "١٢٣"]
)
def test_a_text_without_letters_has_no_language(text: str) -> None:
    assert detect(text).language is None
    assert detect(text).confidence == 0


@pytest.mark.parametrize("text", ["Paris", "iPhone 15", "ok", "lol"])
def test_what_could_be_any_language_is_none(text: str) -> None:
    assert detect(text).language is None


@pytest.mark.parametrize(
    ("text", "language"),
    [("Hyvää huomenta kaikille, mitä kuuluu tänään?", "fi"), ("שלום עולם", "he")],
)
def test_other_languages_are_not_taken_for_ours(text: str, language: str) -> None:
    assert detect(text).language == language


def test_the_choice_can_be_narrowed() -> None:
    assert detect("Hund und Katze", among=["en", "de"]).language == "de"
    assert detect("Hej hur mår du", among=["sv", "de"]).language == "sv"  # not in our table


@given(st.text(max_size=400))
def test_any_text_has_an_answer(text: str) -> None:
    found = detect(text)
    assert found.language is None or (len(found.language) == 2 and found.confidence >= 0.6)


@given(st.text(alphabet="abc é字", min_size=1, max_size=40))
def test_scores_are_the_sum_over_ngrams(text: str) -> None:
    """Against a loop over the n-grams, one after the other."""
    padded = f" {' '.join(text.split())} "
    if not padded.strip():
        return

    def bucket(gram: str) -> int:
        value = 0
        for place, character in enumerate(gram):
            value = (value * 0x01000193 if place else 0) + ord(character) & 0xFFFFFFFF
        value = (value ^ (len(gram) * 0x85EBCA6B & 0xFFFFFFFF)) * 0x9E3779B1 & 0xFFFFFFFF
        return ((value ^ value >> 15) * 0x2C1B3C6D & 0xFFFFFFFF) >> (32 - BITS)

    grams = [padded[i : i + n] for n in range(1, 6) for i in range(len(padded) - n + 1)]
    known = table()
    rows = np.array([known.weights[bucket(gram)] for gram in grams], dtype=np.float64)
    expected = rows.sum(axis=0) * known.scale / np.sqrt(len(grams))
    np.testing.assert_allclose(logits(features(text), known), expected, atol=1e-9)


def test_the_table_is_small_and_no_pickle() -> None:
    described = json.loads((FOLDER / "table.json").read_text())
    assert (FOLDER / "table.bin").stat().st_size == (len(described["languages"]) + 1) << BITS
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 2_000_000


@pytest.mark.real
def test_short_texts_of_all_languages_are_right(data: Path) -> None:
    """The first five words of SIB-200's dev sentences: right 98 %, wrong .5 % at most."""
    right = wrong = count = 0
    for file in sorted((data / "sib200").glob("dev-*.tsv")):
        language = file.stem.removeprefix("dev-")
        for line in file.read_text(encoding="utf-8").splitlines()[1:]:
            text = line.split("\t")[2]
            short = text[:15] if language in ("ja", "th", "zh") else " ".join(text.split()[:5])
            found = detect(short).language
            right += found == language
            wrong += found not in (language, None)
            count += 1
    assert count == 21 * 99
    assert right / count > 0.98
    assert wrong / count < 0.005
