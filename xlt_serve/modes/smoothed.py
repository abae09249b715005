"""Smoothed prediction: the winner of a vote under noise, and what the votes certify."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.errors import ItemError, UsageError
from xlt_serve.modes.base import Asked, Context, Cost, Job, Mode, Reading, largest
from xlt_serve.modes.draws import NoisyText, polled
from xlt_serve.runtime.steps import Steps
from xlt_serve.smoothing.noise import (
    KINDS,
    LARGEST,
    LARGEST_RADIUS,
    SMALLEST,
    TF32,
    Kind,
    Noise,
    Place,
    stream_key,
)
from xlt_serve.smoothing.substitution import PER_TOKEN, RewrittenText
from xlt_serve.smoothing.votes import PollOptions, PollOutcome
from xlt_serve.text.synonyms import DRAWS, Draws, Table, Tables
from xlt_serve.text.tokens import Piece
from xlt_serve.text.words import UNSPACED
from xlt_serve.types import LONGEST_CODE, Certificate, Item, Prediction, Settings, Votes, option

SYNONYM = "synonym"
MOST_LABELS = 2_000
"""That are voted for: a vote takes time and memory by the square of them (``certify.LabelRace``)."""


@dataclass(frozen=True, slots=True)
class Smoothing(PollOptions):
    """What a smoothed prediction may be asked for; ``noise`` and ``scale`` default to those that the
    bundle was trained with, ``seed`` to a new one. To be certified: a ``radius``, or with synonyms a
    number of ``words``; ``synonyms`` says whether these are drawn in groups or from raw lists."""

    radius: float | None = option(
        None, "smoothed: to certify, in the noise's norm", gt=0, le=LARGEST_RADIUS
    )
    noise: str | None = option(
        None, "smoothed: gaussian, uniform or synonym, else as trained", longest=LONGEST_CODE
    )
    scale: float | None = option(
        None, "smoothed: σ or half-width, else as trained", ge=SMALLEST, le=LARGEST
    )
    seed: int | None = option(None, "smoothed: of the draws, else a new one", ge=0, lt=2**63)
    words: int | None = option(None, "smoothed: words to certify, synonym noise", ge=1)
    synonyms: Draws | None = option(
        None, "smoothed: how synonyms are drawn, else as trained, else groups", choices=DRAWS
    )


class Smoothed(Mode):
    """The label that most draws of noise vote for; none where the vote is too close."""

    name = "smoothed"
    options = Smoothing
    keyword = "smoothing"
    repeats = True
    fields = ("votes", "draws", "seed", "lower_bound", "certificate", "warning")

    def refuse_unfit(
        self, context: Context, settings: Settings, served: Mapping[str, Bundle] | None = None
    ) -> None:
        """Votes need a graph whose logits don't depend on the batch, and options that fit the noise.
        Synonyms need a table, of the request's language if it names one."""
        if not 2 <= len(context.labels) <= MOST_LABELS:
            raise UsageError(
                f"mode=smoothed on {context.name}",
                f"has {len(context.labels)} labels; votes need 2 to {MOST_LABELS}",
                "use mode=plain",
            )
        asked = settings.of(Smoothing)
        synonyms = kind_of(context.bundle, asked) == SYNONYM
        _refuse_graph(context, "plain" if synonyms else "perturbed", served)
        if synonyms:
            _refuse_synonyms(context, asked, settings.language)
            return
        if asked.words is not None or asked.synonyms is not None:
            raise UsageError("words, synonyms", "are for noise=synonym", "give a radius")
        chosen_noise(context, asked)

    def may_fail(self, context: Context, settings: Settings) -> bool:
        """A language that is detected may be one without a table."""
        synonyms = kind_of(context.bundle, settings.of(Smoothing)) == SYNONYM
        return super().may_fail(context, settings) or (synonyms and settings.language is None)

    def resolved(self, settings: Settings) -> Settings:
        """With a seed: votes of all chunks of a request are drawn as if they were one."""
        asked = settings.of(Smoothing)
        if asked.seed is not None:
            return settings
        return replace(settings, options=replace(asked, seed=secrets.randbits(48)))

    def cost(self, context: Context, settings: Settings) -> Cost:
        asked = settings.of(Smoothing)
        again = 0
        if kind_of(context.bundle, asked) == SYNONYM:
            again = PER_TOKEN * context.encoder.limit(settings.max_length)
        return Cost(passes=asked.fewest, draws=asked.samples, again=again)

    def steps(self, context: Context, asked: Asked) -> Steps[list[Prediction]]:
        settings = self.resolved(asked.settings)
        reading = Reading(context, self, asked)
        jobs, voters = [], []
        for job in reading.jobs():
            try:
                voters.append(voter_of(context, job, settings))
            except ItemError as error:  # synonyms are of a language
                reading.fail(job.index, error)
            else:
                jobs.append(job)
        options = settings.of(Smoothing)
        outcomes = yield from polled([v.text for v in voters], len(context.labels), options)
        out = {}
        for job, voter, outcome in zip(jobs, voters, outcomes, strict=True):
            if isinstance(outcome, ItemError):
                reading.fail(job.index, outcome)
            else:
                out[job.index] = self._voted(context, job, voter, outcome, settings)
        return reading.in_order(out)

    def _voted(
        self, context: Context, job: Job, voter: _Voter, outcome: PollOutcome, settings: Settings
    ) -> Prediction:
        asked = settings.of(Smoothing)
        assert asked.seed is not None
        votes = Votes(
            votes=dict(zip(context.labels, outcome.votes, strict=True)),
            draws=outcome.draws,
            seed=asked.seed,
            lower_bound=outcome.lower_bound,
            certificate=voter.certificate(outcome, asked.alpha),
            warning=voter.warning,
        )
        shares = {name: count / max(1, votes.draws) for name, count in votes.votes.items()}
        best = outcome.label
        return context.prediction(
            self.name,
            None if best is None else context.labels[best],
            probabilities=largest(shares, settings.top_k),
            language=job.language,
            tokens=job.tokens.count,
            truncated=job.tokens.truncated,
            abstained="votes" if best is None else None,
            smoothed=votes,
            warning=job.warning,
        )


@dataclass(frozen=True, slots=True)
class _Noisy:
    text: NoisyText
    warning: str | None

    def certificate(self, outcome: PollOutcome, alpha: float) -> Certificate | None:
        if outcome.reach <= 0:
            return None
        noise = self.text.noise
        return Certificate(
            norm=noise.norm,
            radius=outcome.reach,
            at=noise.at,
            noise=noise.kind,
            scale=noise.scale,
            alpha=alpha,
        )


@dataclass(frozen=True, slots=True)
class _Rewritten:
    text: RewrittenText
    draws: Draws
    warning: str | None

    def certificate(self, outcome: PollOutcome, alpha: float) -> Certificate | None:
        if outcome.reach <= 0:
            return None
        return Certificate(
            norm="words",
            words=int(outcome.reach),
            of=len(self.text.overlaps),
            at="words",
            noise=SYNONYM,
            synonyms=self.draws,
            alpha=alpha,
        )


_Voter = _Noisy | _Rewritten


def voter_of(context: Context, job: Job, settings: Settings) -> _Voter:
    """The text as it will be drawn; an ItemError where there are no synonyms of its language."""
    asked, bundle = settings.of(Smoothing), context.bundle
    assert asked.seed is not None
    key = stream_key(asked.seed, job.item)
    if kind_of(bundle, asked) != SYNONYM:
        noise, warning = chosen_noise(context, asked)
        return _Noisy(NoisyText(job.tokens.pieces[0], key, noise, asked.radius), warning)
    table = context.tables.of(job.language) if isinstance(job.language, str) else None
    if table is None:
        raise ItemError("no_synonyms", *_no_table(job.language, context.tables))
    draws = chosen_draws(bundle, asked)

    def cut(items: Sequence[Item]) -> list[Piece]:
        pieces = []
        for tokens in context.encoder.encode(items, max_length=settings.max_length):
            if isinstance(tokens, ItemError):
                raise tokens
            pieces.append(tokens.pieces[0])
        return pieces

    longest = context.encoder.limit(settings.max_length)
    text = RewrittenText(job.item, key, table, draws, asked.words, cut, longest)
    return _Rewritten(text, draws, synonym_warning(bundle, table, draws))


def _no_table(language: str | Sequence[str] | None, tables: Tables) -> tuple[str, str, str]:
    """Value, rule, remedy."""
    if language is None:
        return "", "the text's language is not known, and synonyms are of a language", "give it"
    if language in UNSPACED:
        rule = "is written without spaces between words, which synonyms need"
    else:
        rule = f"has no table of synonyms; there are those of {', '.join(tables.languages)}"
    return f"language={language}", rule, "use gaussian or uniform noise"


def _refuse_graph(context: Context, graph: str, served: Mapping[str, Bundle] | None) -> None:
    if graph not in context.bundle.manifest.graphs:
        others = bundles.shipped_with(graph)
        if served is not None:
            others = [name for name, bundle in served.items() if graph in bundle.manifest.graphs]
        raise UsageError(
            f"mode=smoothed on {context.name}",
            f"needs a bundle with the {graph} graph",
            f"use {' or '.join(others)}, or export with --graphs {graph}"
            if others
            else f"export with --graphs {graph}",
        )
    checked = context.bundle.manifest.checks.get("invariance", {}).get(graph)
    if checked is not None and not checked.get("holds"):
        raise UsageError(
            f"mode=smoothed on {context.name}",
            f"its logits move by {checked.get('largest_difference'):.1e} with the batch, which voids"
            " certificates",
            "export with --precision fp32",
        )


def _refuse_synonyms(
    context: Context, asked: Smoothing, language: str | Sequence[str] | None
) -> None:
    for name in ("radius", "scale"):
        if getattr(asked, name) is not None:
            raise UsageError(f"{name} with noise=synonym", "is for other noise", "give words")
    chosen_draws(context.bundle, asked)
    if not context.tables.languages:
        raise UsageError(
            "noise=synonym",
            f"the bundle {context.name} has no table of synonyms",
            "use gaussian or uniform, or give one at export or start: --synonyms en=FILE",
        )
    if not isinstance(language, str | None):  # a pair of mixed languages, as the wire has it
        raise UsageError(
            f"language={', '.join(language)}",
            "a table of synonyms is of one language",
            "use gaussian or uniform noise",
        )
    if language is not None and context.tables.of(language) is None:
        raise UsageError(*_no_table(language, context.tables))


def kind_of(bundle: Bundle, asked: Smoothing) -> str | None:
    """The kind of noise asked for, else that of training: synonyms if there was no other."""
    if asked.noise is not None and asked.noise not in (*KINDS, SYNONYM):
        raise UsageError(f"noise={asked.noise}", f"must be one of {', '.join((*KINDS, SYNONYM))}")
    trained = bundle.manifest.noise
    return asked.noise or trained.get("kind") or (SYNONYM if trained.get("words") else None)


def chosen_draws(bundle: Bundle, asked: Smoothing) -> Draws:
    trained: dict[str, Any] = bundle.manifest.noise.get("words", {})
    draws = asked.synonyms or trained.get("draws", "groups")
    if draws not in DRAWS:
        raise UsageError(f"synonyms={draws}", f"must be one of {', '.join(DRAWS)}")
    return cast(Draws, draws)


def synonym_warning(bundle: Bundle, table: Table, draws: Draws) -> str | None:
    trained: dict[str, Any] = bundle.manifest.noise.get("words", {})
    if not trained:
        return "the model was trained without synonyms: expect fewer votes to agree"
    if table.language != trained["language"]:
        return f"the model was trained with synonyms of {trained['language']} alone"
    if trained.get("sha256") not in (None, table.sha256):
        return "the model was trained with another table of synonyms"
    if draws != trained["draws"]:
        return f"the model was trained with synonyms drawn from {trained['draws']}"
    return None


def chosen_noise(context: Context, asked: Smoothing) -> tuple[Noise, str | None]:
    """The noise asked for, else that of training; a warning where the two differ."""
    trained = context.bundle.manifest.noise
    at = cast(Place, trained.get("at", "embeddings"))
    kind, scale = asked.noise or trained.get("kind"), asked.scale
    if scale is None and kind == trained.get("kind"):
        scale = trained.get("scale")
    if kind is None or scale is None:
        raise UsageError(
            f"noise={asked.noise}, scale={asked.scale}",
            f"the bundle {context.name} was trained without such noise and has no default",
            "give both noise and scale",
        )
    precision = context.bundle.manifest.graphs["perturbed"].precision
    if context.provider == "tensorrt" and precision == "fp32":
        precision = TF32
    noise = Noise(cast(Kind, kind), float(scale), at, precision)
    if "kind" not in trained:
        return noise, "the model was trained without noise: expect few votes to agree"
    if (noise.kind, noise.scale) != (trained["kind"], trained["scale"]):
        return noise, f"the model was trained with {trained['kind']} noise of {trained['scale']}"
    return noise, None
