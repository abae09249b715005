"""Items in, predictions out: the one road that the CLI, the service and the scorer take."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard, Unpack

import numpy as np
import numpy.typing as npt

from xlt_serve import bundle as bundles
from xlt_serve import modes, translation
from xlt_serve.bundle import Bundle
from xlt_serve.errors import ItemError, UsageError
from xlt_serve.modes.base import Asked, Context
from xlt_serve.modes.keywords import PredictKeywords, ZeroShotKeywords
from xlt_serve.modes.zero_shot import ZeroShot
from xlt_serve.runtime.batching import default_budget
from xlt_serve.runtime.graph_io import GRAPHS
from xlt_serve.runtime.open_graph import described
from xlt_serve.runtime.runners import Runners
from xlt_serve.runtime.session import Options, Session
from xlt_serve.runtime.steps import Driven, RunRequest, Steps, Submit, TranslateRequest, drive
from xlt_serve.signing import key_files
from xlt_serve.text.synonyms import Tables
from xlt_serve.text.tokens import LARGEST, Encoder, Piece
from xlt_serve.translation import Translators
from xlt_serve.types import Mode, Outcome, Prediction, Predictions, Settings, Untranslated

NO_TRANSLATOR = Untranslated(
    "no_translator", "no translators are configured and the request has no translation"
)


class Classifier:
    """A loaded bundle. ``predict`` may be called from several threads. ``name``: in answers and errors,
    by default its manifest's."""

    def __init__(
        self,
        bundle: Bundle,
        options: Options | None = None,
        budget: int | None = None,
        translators: Translators | None = None,
        synonyms: Mapping[str, str | Path] | None = None,
        trust_tokenizer: bool | None = None,
        name: str = "",
    ) -> None:
        provider = options.provider if options else "cpu"
        if budget is None:
            budget = default_budget(provider)
        if budget < 1:
            raise UsageError(f"budget={budget}", "must be at least 1 token")
        manifest = bundle.manifest
        self.bundle, self.budget, self.translators = bundle, budget, translators
        self.labels = manifest.labels
        for graph in set(manifest.graphs) & set(GRAPHS):
            described(bundle, graph)  # refuses what it reads, though it may be opened much later
        self.encoder = Encoder(
            bundle.file(manifest.tokenizer), manifest.max_length, trust_tokenizer
        )
        self.runners = Runners(bundle, options, budget)
        self.context = Context(bundle, self.encoder, Tables(bundle, synonyms), name, provider)
        self.runners.of("plain")  # what can't be opened is no classifier

    def __repr__(self) -> str:
        manifest = self.bundle.manifest
        labels = f"{len(self.labels)} labels"
        graphs = "+".join(manifest.graphs)
        return f"<Classifier {self.name} {manifest.version}: {labels}, {graphs}>"

    @property
    def name(self) -> str:
        return self.context.name

    @name.setter
    def name(self, name: str) -> None:
        self.context = replace(self.context, called=name)

    @property
    def session(self) -> Session:
        """That of the plain graph."""
        return self.runners.of("plain").session

    def predict(
        self,
        items: Iterable[object],
        *,
        mode: Mode = "plain",
        translations: Sequence[object] | None = None,
        **options: Unpack[PredictKeywords],
    ) -> Predictions:
        """One prediction for each item, in order; an item's own error is a value in its place.

        ``items`` are texts, or tuples of two where the bundle classifies pairs; ``options`` are the
        fields of ``Settings`` and the mode's own. With ``mode="smoothed"`` the label is the
        winner of a vote under noise (see ``Smoothing``), and there is none if the vote is too close.
        With ``mode="paired"`` a text and its translation are predicted together, with
        ``mode="translate"`` the translation alone; ``translations`` has for each item its translation
        into the source language (a text, or two for a pair), or None to have it translated.
        """
        if isinstance(items, str):
            raise UsageError("a single text", "predict takes a list", "write predict([text])")
        return self._predicted(list(items), modes.settings(mode, **options), translations)

    def _predicted(
        self, items: list[object], settings: Settings, translations: Sequence[object] | None = None
    ) -> Predictions:
        asked = Asked(items, settings, translations)
        self.refuse_unfit(asked.settings)
        modes.check_translations(asked)
        deadline = None if self.translators is None else self.translators.deadline
        return Predictions(drive(self.steps(asked), self.runners.run, self._submit(deadline)))

    def zero_shot(
        self,
        texts: Iterable[object],
        labels: Sequence[str],
        **options: Unpack[ZeroShotKeywords],
    ) -> Predictions:
        """One of these labels for each text, or several with ``multi_label=True``; further options:
        ``template`` and ``scorer`` (see ``Candidates``), and the fields of ``Settings``."""
        if isinstance(texts, str):
            raise UsageError(
                "a single text", "zero_shot takes a list", "write zero_shot([text], …)"
            )
        if isinstance(labels, str):
            raise UsageError(f"labels={labels!r}", "must be a list", f"write [{labels!r}]")
        settings = modes.settings(ZeroShot.name, labels=tuple(labels), **options)
        return self._predicted(list(texts), settings)

    def predict_batches(
        self, batches: Iterable[Sequence[object]], settings: Settings
    ) -> Iterator[list[Prediction]]:
        """Batch by batch. In modes that read translations, the next batch is translated while this
        one runs, without a deadline: a file is in no hurry, and the engines' own time-outs hold."""
        self.refuse_unfit(settings)
        # Elsewhere there is nothing to wait for: the next batch is not even read yet.
        depth = 1 if modes.of(settings).translates else 0
        begun: deque[Driven[list[Prediction]]] = deque()
        try:
            for batch in batches:
                begun.append(Driven(self.steps(Asked(batch, settings)), self._submit(None)))
                if len(begun) > depth:
                    yield begun.popleft().finish(self.runners.run)
            while begun:
                yield begun.popleft().finish(self.runners.run)
        finally:
            for driven in begun:
                driven.cancel()

    def refuse_unfit(self, settings: Settings, served: Mapping[str, Bundle] | None = None) -> None:
        """A UsageError where the settings don't fit the mode, or this bundle lacks what it needs; see
        ``Mode.refuse_unfit``."""
        mode = modes.of(settings)
        mode.check(settings)
        mode.refuse_unfit(self.context, settings, served)

    def steps(self, asked: Asked) -> Steps[list[Prediction]]:
        """The same as steps, for whoever runs them. Whether the request fits was asked before."""
        return modes.of(asked.settings).steps(self.context, asked)

    def logits(self, pieces: Sequence[Piece]) -> npt.NDArray[np.float32]:
        """[pieces, labels], in order, whatever the batches were."""
        if not pieces:
            return np.zeros((0, len(self.labels)), dtype=np.float32)
        logits: npt.NDArray[np.float32] = self.runners.run(RunRequest("plain", pieces))["logits"]
        return logits

    def sizes(self, items: Sequence[object]) -> list[int]:
        """Tokens of each item, before any is cut; 0 where it is no text, or one too large to be read.
        For sorting: nothing runs."""
        sides = [item if isinstance(item, tuple | list) else (item,) for item in items]
        texts = [side for pair in sides for side in pair if _readable(side)]
        counted = (0 if isinstance(ids, ItemError) else len(ids) for ids in self.encoder.ids(texts))
        return [sum(next(counted) if _readable(s) else 0 for s in pair) for pair in sides]

    def _submit(self, deadline: float | None) -> Submit:
        def submit(request: TranslateRequest) -> Future[list[Outcome]]:
            if self.translators is not None:
                texts, languages = request.texts, request.languages
                return self.translators.submit(texts, languages, request.target, deadline)
            done: Future[list[Outcome]] = Future()
            done.set_result([NO_TRANSLATOR] * len(request.texts))
            return done

        return submit


def load(
    name_or_path: str | Path | None = None,
    *,
    threads: int = 0,
    provider: str = "cpu",
    budget: int | None = None,
    translators: Translators | str | Path | None = None,
    synonyms: Mapping[str, str | Path] | None = None,
    trust_tokenizer: bool | None = None,
    name: str = "",
    signed_by: str | Path | None = None,
) -> Classifier:
    """A classifier from a shipped name, else a folder, never a download; no argument: the default.

    ``translators`` for the modes paired and translate: a TOML file of them, or what it loads into.
    ``synonyms``: language → file of a table (``xlt_serve.text.synonyms``), before the bundle's own.
    ``trust_tokenizer``: take regular expressions that no known tokenizer has (by default as
    ``XLT_TRUST_TOKENIZER`` says). ``name``: what answers and errors call it, instead of its own name.
    ``signed_by``: a file of public keys, one of which must have signed it (by default that in
    ``XLT_REQUIRE_SIGNATURE``). The files are hashed here and then read where they are: whoever
    changes them in place changes the answers. A service copies them first.
    """
    if isinstance(translators, str | Path):
        translators = translation.load(Path(translators))
    options = Options(threads, provider)
    signers = None if signed_by is None else key_files.read_public(Path(signed_by))
    bundle = bundles.load(name_or_path, signers)
    return Classifier(bundle, options, budget, translators, synonyms, trust_tokenizer, name)


def _readable(side: object) -> TypeGuard[str]:
    return isinstance(side, str) and len(side) <= LARGEST
