"""The keywords of ``predict`` and of the clients, for type checkers and editors.

What they mean and may be stands with the options themselves (``Settings``, ``Smoothing``, ``Candidates``);
a test compares the names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from xlt_serve.modes.smoothed import Smoothing
from xlt_serve.modes.zero_shot import Scorer
from xlt_serve.text.synonyms import Draws
from xlt_serve.types import Long, Mode


class CommonKeywords(TypedDict, total=False):
    """In every mode, over HTTP too."""

    language: str | Sequence[str] | None
    max_length: int | None
    abstain_below: float | None
    top_k: int | None


class SmoothedKeywords(TypedDict, total=False):
    samples: int
    alpha: float
    radius: float | None
    noise: str | None
    scale: float | None
    seed: int | None
    words: int | None
    synonyms: Draws | None


class CandidateKeywords(TypedDict, total=False):
    template: str | dict[str, str] | None
    multi_label: bool
    scorer: Scorer | None


class RequestKeywords(TypedDict, total=False):
    """Of a request to a service."""

    bundle: str | None
    deadline_ms: int | None


class PredictKeywords(CommonKeywords, SmoothedKeywords, total=False):
    """``smoothing``: all options of the votes as one value."""

    long: Long
    require_translation: bool
    smoothing: Smoothing | None


class ZeroShotKeywords(CommonKeywords, CandidateKeywords, total=False):
    long: Long


class ClassifyKeywords(CommonKeywords, SmoothedKeywords, RequestKeywords, total=False):
    long: Long
    mode: Mode
    translations: Sequence[object] | None
    require_translation: bool | None


class ZeroShotRequestKeywords(CommonKeywords, CandidateKeywords, RequestKeywords, total=False):
    """A text is never read in windows there."""
