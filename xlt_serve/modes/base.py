"""What a mode is: one way of answering, the same few methods for each of them.

A mode takes items and gives predictions as steps (``runtime.steps``). A new one is a file with a
class and a line in ``modes.MODES``; Python, the service, the command line and scoring find it there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from xlt_serve.bundle import Bundle
from xlt_serve.errors import ItemError, UsageError
from xlt_serve.modes import trimmed
from xlt_serve.runtime.steps import Steps
from xlt_serve.text.language import detect
from xlt_serve.text.synonyms import Tables
from xlt_serve.text.tokens import Encoder, Tokens, check
from xlt_serve.types import Failure, Item, NoOptions, Prediction, Settings

CLASSIFY, ZERO_SHOT = "/classify", "/zero_shot"


@dataclass(frozen=True, slots=True)
class Context:
    """What a mode may use of a loaded bundle: manifest, tokenizer, tables of synonyms. ``called``: what
    it is served as; empty: what its manifest calls it. ``provider``: that runs its graphs."""

    bundle: Bundle
    encoder: Encoder
    tables: Tables
    called: str = ""
    provider: str = "cpu"

    @property
    def name(self) -> str:
        """In answers and errors."""
        return self.called or self.bundle.manifest.name

    @property
    def labels(self) -> tuple[str, ...]:
        return self.bundle.manifest.labels

    def prediction(self, mode: str, label: str | None, **found: Any) -> Prediction:
        """With the name and version of the bundle that it comes from."""
        version = self.bundle.manifest.version
        return Prediction(label, mode=mode, bundle=self.name, version=version, **found)

    def warning(
        self, language: str | Sequence[str] | None, pieces: Iterable[Sequence[int]]
    ) -> str | None:
        """Of a text in this language, read as these tokens."""
        kept = self.bundle.manifest.trimmed_to
        if kept is None:
            return None
        return trimmed.warning(kept, language, self.encoder.unknown_share(pieces))

    def failed(self, mode: str, code: str, message: str) -> Prediction:
        return self.prediction(mode, None, error=Failure(code, message))

    def refused(self, mode: str, error: ItemError) -> Prediction:
        """The answer to an item that has none."""
        return self.failed(mode, error.code, str(error))


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be predicted, and how. ``translations``: the client's own, a text (or two of a pair)
    or None for each item; None: it has none at all. ``windows``: how many of its texts there may be."""

    items: Sequence[object]
    settings: Settings
    translations: Sequence[object] | None = None
    windows: int | None = None

    def part(self, start: int, end: int) -> Asked:
        if end - start == len(self.items):
            return self
        given = None if self.translations is None else self.translations[start:end]
        return replace(self, items=self.items[start:end], translations=given)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request costs at least. ``passes``: how often each text runs, with so many bytes ``more``
    than its own. ``draws``: how often it may run at most. ``again``: bytes of a text that are tokenised
    anew for each pass, at most. ``beside``: bytes that every chunk of texts has to tokenise beside them,
    for each of so many ``kinds`` of texts that are in it. ``shared``: rows that every chunk would run
    beside them, of these bytes. ``light``: only tokenising is needed, and one run a text."""

    passes: int = 1
    more: int = 0
    draws: int = 1
    again: int = 0
    beside: int = 0
    kinds: int = 1
    shared: int = 0
    light: bool = False


class Mode(ABC):
    """A way of answering."""

    name: ClassVar[str]
    route: ClassVar[str] = CLASSIFY
    """Where the service takes requests for it."""
    options: ClassVar[type] = NoOptions
    """A dataclass of the options that no other mode has."""
    keyword: ClassVar[str] = ""
    """The keyword under which ``predict`` takes these options as one value; by default the name."""
    translates: ClassVar[bool] = False
    """It reads translations, and takes those that the client has."""
    repeats: ClassVar[bool] = False
    """It runs each text many times."""
    windows: ClassVar[bool] = False
    """It can read a long text in windows."""
    fields: ClassVar[tuple[str, ...]] = ()
    """What its answers have beside those of plain; columns of scoring."""

    def check(self, settings: Settings) -> None:
        """A UsageError where settings ask what this mode has not got."""
        if settings.long == "windows" and not self.windows:
            raise UsageError("long=windows", f"has no {self.name} form", "use truncate or error")
        if settings.require_translation:
            self.refuse_translations("require_translation")

    def refuse_translations(self, name: str = "translations") -> None:
        """A UsageError where this mode reads none."""
        if not self.translates:
            raise UsageError(name, f"mode={self.name} uses no translations", "leave it out")

    def refuse_unfit(
        self, context: Context, settings: Settings, served: Mapping[str, Bundle] | None = None
    ) -> None:
        """A UsageError where this bundle lacks what the mode needs. ``served``: the bundles that the
        client could ask instead, by name; by default those that ship."""
        return None  # most modes need no more than every bundle has

    def may_fail(self, context: Context, settings: Settings) -> bool:
        """Whether good items may yet turn out to be errors, without probabilities."""
        return settings.long == "error" or settings.require_translation

    def suits(self, bundle: Bundle) -> bool:
        """Whether to take this bundle where a request names none; else the first is taken."""
        return False

    def resolved(self, settings: Settings) -> Settings:
        """The settings of a request with what is drawn once for all its items, as a seed."""
        return settings

    def cost(self, context: Context, settings: Settings) -> Cost:
        return Cost()

    @abstractmethod
    def steps(self, context: Context, asked: Asked) -> Steps[list[Prediction]]:
        """One prediction for each item, in order; an item's own error is a value in its place."""


@dataclass(frozen=True, slots=True)
class Job:
    """A valid item on its way: where it stands in the request, its tokens, its language; a warning where
    they don't fit."""

    index: int
    item: Item
    tokens: Tokens
    language: str | Sequence[str] | None
    warning: str | None = None


class Reading:
    """The items of a request: checked at once, tokenised when that is asked for."""

    def __init__(self, context: Context, mode: Mode, asked: Asked) -> None:
        self._context, self._mode, self._settings = context, mode, asked.settings
        self._windows = asked.windows
        self.failed: dict[int, Prediction] = {}
        self.valid: dict[int, Item] = {}
        self.languages: dict[int, str | Sequence[str] | None] = {}
        for index, item in enumerate(asked.items):
            try:
                self.valid[index] = check(item, context.bundle.manifest.pair)
            except ItemError as error:
                self.fail(index, error)
        self._jobs: list[Job] | None = None

    def fail(self, index: int, error: ItemError) -> None:
        self.failed[index] = self._context.refused(self._mode.name, error)

    def language(self, index: int) -> str | Sequence[str] | None:
        """Of an item, as the request says or as it looks; looked at once."""
        if index not in self.languages:
            item = self.valid[index]
            text = item if isinstance(item, str) else " ".join(item)
            self.languages[index] = self._settings.language or detect(text).language
        return self.languages[index]

    def jobs(self) -> list[Job]:
        """The items that the model can read; the others have failed."""
        if self._jobs is None:
            settings = self._settings
            encoded = self._context.encoder.encode(
                list(self.valid.values()), settings.long, settings.max_length, self._windows
            )
            self._jobs = []
            for (index, item), tokens in zip(self.valid.items(), encoded, strict=True):
                if isinstance(tokens, ItemError):
                    self.fail(index, tokens)
                else:
                    language = self.language(index)
                    read = (piece.ids for piece in tokens.pieces)
                    warning = self._context.warning(language, read)
                    self._jobs.append(Job(index, item, tokens, language, warning))
        return self._jobs

    def in_order(self, answers: dict[int, Prediction]) -> list[Prediction]:
        """The answers and the failures, an item each."""
        whole = self.failed | answers
        return [whole[index] for index in range(len(whole))]


def labelled(
    context: Context,
    mode: str,
    job: Job,
    probabilities: npt.NDArray[np.float64],
    settings: Settings,
    graph: str = "plain",
) -> Prediction:
    """The likeliest label, unless it is less likely than it has to be."""
    least = settings.abstain_below
    if least is None:
        least = context.bundle.manifest.abstain_below(graph)
    best = int(probabilities.argmax())
    unsure = least is not None and probabilities[best] < least
    named = {name: float(p) for name, p in zip(context.labels, probabilities, strict=True)}
    return context.prediction(
        mode,
        None if unsure else context.labels[best],
        probabilities=largest(named, settings.top_k),
        language=job.language,
        tokens=job.tokens.count,
        truncated=job.tokens.truncated,
        windows=len(job.tokens.pieces),
        abstained="confidence" if unsure else None,
        warning=job.warning,
    )


def largest(probabilities: dict[str, float], count: int | None) -> dict[str, float]:
    """All in the order of the labels, or only so many, the largest first."""
    if count is None:
        return probabilities
    return dict(sorted(probabilities.items(), key=lambda entry: -entry[1])[:count])
