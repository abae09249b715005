from __future__ import annotations

import pytest

from xlt_serve.language import detect


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The committee will publish its report next week.", "en"),
        ("Der Ausschuss veröffentlicht seinen Bericht nächste Woche.", "de"),
        ("Комитет опубликует свой доклад на следующей неделе.", "ru"),
        ("委员会将于下周发表报告。", "zh"),
        ("ستنشر اللجنة تقريرها الأسبوع المقبل.", "ar"),
        ("समिति अगले सप्ताह अपनी रिपोर्ट प्रकाशित करेगी।", "hi"),
        ("Kamati itachapisha ripoti yake wiki ijayo.", "sw"),
    ],
)
def test_languages_are_recognised(text: str, language: str) -> None:
    assert detect(text).language == language


@pytest.mark.parametrize("text", ["", "12:30", "🙂🙂", "…"])
def test_a_text_without_letters_has_no_language(text: str) -> None:
    assert detect(text).language is None


def test_the_choice_can_be_narrowed() -> None:
    assert detect("Hund und Katze", among=["en", "de"]).language == "de"
