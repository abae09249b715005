"""Which language is this text?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

UNSURE_BELOW = 0.5


@dataclass(frozen=True, slots=True)
class Detection:
    """``language`` is an ISO 639-1 code, or None where the text does not say."""

    language: str | None
    confidence: float


def detect(text: str, among: Sequence[str] = ()) -> Detection:
    """The most likely language of ``text``, only ``among`` those if any are given.

    A text without a letter has no language; below a probability of one half the answer is None.
    """
    if not any(character.isalpha() for character in text):
        return Detection(None, 0.0)
    language, confidence = _identifier(tuple(sorted(among))).classify(text[:2000])
    if confidence < UNSURE_BELOW:
        return Detection(None, float(confidence))
    return Detection(str(language), float(confidence))


@cache
def _identifier(among: tuple[str, ...]) -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    if among:
        identifier.set_languages(set(among) & set(identifier.labels))
    return identifier
