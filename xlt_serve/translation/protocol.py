"""What a translator is, and what comes of asking one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xlt_serve.errors import XltError
from xlt_serve.types import Outcome, Translation, Untranslated, Why

__all__ = [
    "Outcome",
    "PairRefused",
    "Translation",
    "TranslationError",
    "Translator",
    "Untranslated",
    "Why",
]


class TranslationError(XltError):
    """An engine failed on a batch: crashed, hung, or answered what is no answer."""

    code = "translation"


class PairRefused(TranslationError):
    """The engine works, but not for this pair of languages."""

    code = "pair_refused"


class Translator(Protocol):
    """An engine. Called from one event loop, with several calls under way at once.

    ``translate`` gives one value for each text, in order; None where it has nothing for a text. It
    raises a TranslationError (or anything else) when it failed, and may be cancelled at any time.
    """

    name: str

    def takes(self, source: str, target: str) -> bool: ...

    async def translate(
        self, texts: Sequence[str], source: str, target: str
    ) -> list[Translation | None]: ...

    def close(self) -> None: ...
