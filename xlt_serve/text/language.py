"""Which language is this text?

A linear model over hashed character n-grams, made for short texts in the languages that the package
knows best (``languages/``; `python -m xlt_training.encoders.language_table` makes it). One of its classes is "none of
these": what falls there is put to py3langid, which knows 97 languages and needs longer texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

UNSURE_BELOW = 0.6
OTHER_UNSURE_BELOW = 0.9
"""py3langid is sure of itself: on texts of no language at all it often gives one above one half."""
LONGEST = 300
"""Characters that are looked at: more change nothing."""
GRAMS = 5
BITS = 16
FOLDER = Path(__file__).parent / "languages"

# Punctuation, digits and symbols say nothing; combining marks do, and \W would take them.
_BREAK = re.compile(
    r"(?:https?://\S+|@\w+|[\s\d_\u0000-\u0040\u005b-\u0060\u007b-\u00bf\u00d7\u00f7\u060c\u061b\u061f"
    r"\u0660-\u0669\u066a-\u066d\u06d4\u06f0-\u06f9\u0964-\u096f\u0e3f\u0e50-\u0e5b\u2000-\u2bff\u3000-\u3004"
    r"\u3006-\u3020\u30fb\ufe00-\ufe6f\uff00-\uff20\uff3b-\uff40\uff5b-\uff65\ufff0-\uffff\U0001f000-\U0001ffff])+"
)


@dataclass(frozen=True, slots=True)
class Detection:
    """``language`` is an ISO 639-1 code, or None where the text does not say."""

    language: str | None
    confidence: float


@dataclass(frozen=True, slots=True)
class GramTable:
    """``weights`` [buckets, classes]; the last class is "none of these languages"."""

    languages: tuple[str, ...]
    weights: npt.NDArray[np.int8]
    scale: float


def detect(text: str, among: Sequence[str] = ()) -> Detection:
    """The most likely language of ``text``, only ``among`` those if any are given.

    A text without a letter has no language; where two languages are about as likely, the answer is
    None, with the confidence of the likelier one.
    """
    grams = features(text)
    if not len(grams):
        return Detection(None, 0.0)
    known = table()
    scores = logits(grams, known)
    if among:
        return _narrowed(text, scores, known, tuple(among))
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    best = int(weights.argmax())
    if best == len(known.languages):
        return _outside(text, known.languages)
    return _sure(known.languages[best], float(weights[best]), UNSURE_BELOW)


def covers(language: str) -> bool:
    """Whether ``detect`` could name it."""
    return language in table().languages or language in _identifier(()).labels


def features(text: str) -> npt.NDArray[np.uint32]:
    """The buckets of all n-grams of up to ``GRAMS`` characters; none where there is no letter."""
    plain = _BREAK.sub(" ", text[:LONGEST].lower()).strip()
    if not plain:
        return np.zeros(0, dtype=np.uint32)
    codes = np.frombuffer(f" {plain} ".encode("utf-32-le", "replace"), dtype=np.uint32)
    rolling, out = codes, []
    for size in range(1, GRAMS + 1):
        if size > 1:
            if size > len(codes):
                break
            rolling = rolling[:-1] * np.uint32(0x01000193) + codes[size - 1 :]
        mixed = (rolling ^ np.uint32(size * 0x85EBCA6B & 0xFFFFFFFF)) * np.uint32(0x9E3779B1)
        out.append(
            (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x2C1B3C6D) >> np.uint32(32 - BITS)
        )
    return np.concatenate(out)


def logits(grams: npt.NDArray[np.uint32], known: GramTable) -> npt.NDArray[np.float64]:
    """Evidence grows with the root of the text's length: neighbouring n-grams are no independent ones."""
    total = known.weights[grams].sum(axis=0, dtype=np.int32)
    return np.asarray(total * (known.scale / np.sqrt(len(grams))), dtype=np.float64)


def evidence(text: str) -> float:
    """For the likeliest language: how much more its n-grams occur there than elsewhere."""
    grams = features(text)
    return float(logits(grams, table()).max()) if len(grams) else 0.0


@cache
def table() -> GramTable:
    described = json.loads((FOLDER / "table.json").read_text(encoding="utf-8"))
    classes = (*described["languages"], "other")
    weights = np.frombuffer((FOLDER / "table.bin").read_bytes(), dtype=np.int8)
    return GramTable(
        tuple(described["languages"]), weights.reshape(1 << BITS, len(classes)), described["scale"]
    )


def _narrowed(
    text: str, scores: npt.NDArray[np.float64], known: GramTable, among: tuple[str, ...]
) -> Detection:
    if not set(among) <= set(known.languages):
        language, confidence = _identifier(among).classify(text[:LONGEST])
        return _sure(str(language), float(confidence), UNSURE_BELOW)
    chosen = [known.languages.index(language) for language in among]
    weights = np.exp(scores[chosen] - scores[chosen].max())
    best = int(weights.argmax())
    return _sure(among[best], float(weights[best] / weights.sum()), UNSURE_BELOW)


def _outside(text: str, known: Sequence[str]) -> Detection:
    """A language of py3langid's that is none of ours."""
    language, confidence = _identifier(()).classify(text[:LONGEST])
    if language in known:  # the two disagree
        return Detection(None, 0.0)
    return _sure(str(language), float(confidence), OTHER_UNSURE_BELOW)


def _sure(language: str, confidence: float, least: float) -> Detection:
    return Detection(language if confidence >= least else None, confidence)


@cache
def _identifier(among: tuple[str, ...]) -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    if among:
        identifier.set_languages(set(among) & set(identifier.labels))
    return identifier
