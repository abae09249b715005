"""The sentences that ship: twenty in each language, in its own script."""

from __future__ import annotations

import unicodedata

import pytest
from xlt_training.data.sentences import sentences
from xlt_training.encoders.corpus import LANGUAGES
from xlt_training.exporting.trim import SCRIPTS, is_written_in, scripts_of

from xlt_serve.text.tokens import check


def test_there_are_twenty_of_each_of_the_languages() -> None:
    assert sorted(sentences()) == LANGUAGES
    assert {len(texts) for texts in sentences().values()} == {20}
    whole = [text for texts in sentences().values() for text in texts]
    assert len(set(whole)) == len(whole)
    assert all(check(text, pair=False) == text.strip() for text in whole)
    assert all(unicodedata.is_normalized("NFC", text) for text in whole)


@pytest.mark.parametrize("language", LANGUAGES)
def test_they_are_in_the_languages_script(language: str) -> None:
    """A letter of another script would be a slip of the pen; most must be of the language's own."""
    scripts = set(SCRIPTS[language]) or {"LATIN"}
    for text in sentences()[language]:
        assert is_written_in(text, scripts_of([language]) | {"KATAKANA-HIRAGANA"}), text
        letters = [c for c in text if unicodedata.category(c)[0] == "L"]
        own = [c for c in letters if unicodedata.name(c).split(" ")[0] in scripts]
        assert len(own) >= 0.5 * len(letters), text


def test_lengths_differ() -> None:
    for texts in sentences().values():
        assert 3 * min(map(len, texts)) < max(map(len, texts))
