"""Is this a translation at all? Cheap signs of the ways in which engines go wrong."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

LATIN_TARGETS = frozenset(
    [
        "af",
        "ca",
        "cs",
        "cy",
        "da",
        "de",
        "en",
        "es",
        "et",
        "eu",
        "fi",
        "fr",
        "ga",
        "gl",
        "hr",
        "hu",
        "id",
        "is",
        "it",
        "lt",
        "lv",
        "ms",
        "nl",
        "no",
        "pl",
        "pt",
        "ro",
        "sk",
        "sl",
        "sq",
        "sv",
        "sw",
        "tr",
        "vi",
    ]
)
_WORD = re.compile(r"\w+")


def nonsense(text: str, translation: object, target: str) -> str | None:
    """What is wrong with ``translation`` as one of ``text``, or None."""
    if not isinstance(translation, str):
        return f"is {type(translation).__name__}, not text"
    if not translation.strip():
        return "is empty"
    try:
        translation.encode()
    except UnicodeEncodeError:
        return "is no valid Unicode"
    if "\0" in translation or translation.count("�") > text.count("�"):
        return "has broken characters"
    if len(translation) > 60 + 12 * len(text):
        return f"is {len(translation)} characters long for a text of {len(text)}"
    if len(text) > 120 and len(translation) * 12 < len(text):
        return f"is {len(translation)} characters long for a text of {len(text)}"
    if (word := _loop(translation)) and word not in text.lower():
        return f"repeats {word!r} again and again"
    if target in LATIN_TARGETS and (share := _latin(translation)) is not None and share < 0.5:
        return f"is not written in the letters of {target}"
    return None


def _loop(text: str) -> str | None:
    """A word that makes up most of a longer text, as decoders that lost their way write."""
    words = _WORD.findall(text.lower())
    if len(words) < 12:
        return None
    word, often = Counter(words).most_common(1)[0]
    if often > len(words) / 2:
        return str(word)
    runs = Counter(zip(words, words[1:], words[2:], strict=False))
    triple, count = runs.most_common(1)[0]
    return " ".join(triple) if 3 * count > len(words) / 2 and count > 3 else None


def _latin(text: str) -> float | None:
    """The share of Latin letters, None where there is no letter."""
    if text.isascii():  # most of what is in English: no need to look at each letter
        return 1.0 if any(map(str.isalpha, text)) else None
    letters = [c for c in text if c.isalpha()]
    if not letters:
        return None
    return sum(c.isascii() or "LATIN" in unicodedata.name(c, "") for c in letters) / len(letters)
