"""What a translator is, and what comes of asking one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from xlt_serve.errors import XltError

Why: TypeAlias = Literal["language", "no_translator", "timeout", "failed", "nonsense", "resting"]


@dataclass(frozen=True, slots=True)
class Translation:
    """``quality`` is the engine's own hint between 0 and 1, None where it gives none."""

    text: str
    engine: str
    quality: float | None = None


@dataclass(frozen=True, slots=True)
class Untranslated:
    """Why there is no translation: a value, since a plain answer is better than none."""

    code: Why
    message: str


Outcome: TypeAlias = Translation | Untranslated


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
