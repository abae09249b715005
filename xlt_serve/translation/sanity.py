"""Is this a translation at all? Cheap signs of the ways in which engines go wrong."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import Literal, TypeAlias

from xlt_serve.text.language import covers, detect, table

Kind: TypeAlias = Literal["empty", "broken", "length", "repetition", "copy", "language", "quality"]

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


_UNIT = re.compile(r"(.{2,40}?)\1{3,}", re.DOTALL)
COPIED = 12
"""Letters from which on a text that comes back as it was is a copy, not a name."""
SURE = 0.8
LETTERS = 20
"""A translation of so many letters that is so surely in another language is not in the one asked for."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """``rule``: in words, behind "its translation"."""

    kind: Kind
    rule: str


def nonsense(text: str, translation: object, target: str) -> str | None:
    """What is wrong with ``translation`` as one of ``text``, or None."""
    found = flaw(text, translation, target)
    return None if found is None else found.rule


def flaw(text: str, translation: object, target: str, source: str = "") -> Flaw | None:
    """Signs that are sure enough to refuse an answer of the moment."""
    if not isinstance(translation, str):
        return Flaw("broken", f"is {type(translation).__name__}, not text")
    if not translation.strip():
        return Flaw("empty", "is empty")
    try:
        translation.encode()
    except UnicodeEncodeError:
        return Flaw("broken", "is no valid Unicode")
    if "\0" in translation or translation.count("�") > text.count("�"):
        return Flaw("broken", "has broken characters")
    long = len(translation) > 60 + 12 * len(text)
    if long or (len(text) > 120 and len(translation) * 12 < len(text)):
        rule = f"is {len(translation)} characters long for a text of {len(text)}"
        return Flaw("length", rule)
    if (word := _loop(translation)) and word not in text.lower():
        return Flaw("repetition", f"repeats {word!r} again and again")
    if target in LATIN_TARGETS and (share := _latin(translation)) is not None and share < 0.5:
        return Flaw("language", f"is not written in the letters of {target}")
    return None


def strict_flaw(text: str, translation: str, target: str, source: str = "") -> Flaw | None:
    """These, and signs that are sure enough to leave a row out of what is trained on."""
    if found := flaw(text, translation, target):
        return found
    letters = _letters(translation)
    if len(letters) >= COPIED and letters == _letters(text):
        return Flaw("copy", "is the text itself")
    unit = _UNIT.search(translation)
    if unit and 2 * len(unit[0]) > len(translation) and unit[1] * 4 not in text:
        return Flaw("repetition", f"repeats {unit[1]!r} again and again")
    if len(letters) >= LETTERS and (other := _other_language(translation, target, source)):
        return Flaw("language", f"is in {other}, not in {target}")
    return None


def _other_language(translation: str, target: str, source: str) -> str:
    """The language that it is surely in instead; "" if it may be in the target. Of targets that the
    detector knows less well, only the source is told apart."""
    spoken, given = (re.split("[-_]", lg.lower(), maxsplit=1)[0] for lg in (target, source))
    if spoken in table().languages:
        seen = detect(translation)
    elif given and covers(spoken) and covers(given):
        seen = detect(translation, among=(given, spoken))
    else:
        return ""
    sure = seen.language not in (None, spoken) and seen.confidence >= SURE
    return seen.language or "" if sure else ""


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


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
