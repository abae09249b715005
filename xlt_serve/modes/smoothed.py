"""A smoothed prediction of a bundle: which noise, which votes, and what they certify."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.errors import ItemError, UsageError
from xlt_serve.runtime.steps import Steps
from xlt_serve.smoothing import votes as smooth
from xlt_serve.smoothing.noise import KINDS, Kind, Noise, Place, stream_key
from xlt_serve.smoothing.perturbation import NoisyText
from xlt_serve.smoothing.substitution import Cut, RewrittenText
from xlt_serve.smoothing.votes import Outcome
from xlt_serve.text.synonyms import DRAWS, Draws, Table, Tables
from xlt_serve.text.tokens import Piece
from xlt_serve.text.words import UNSPACED
from xlt_serve.types import Certificate, Item, Smoothing, Votes

SYNONYM = "synonym"

Answer: TypeAlias = "tuple[int | None, Votes] | ItemError"
"""A label's number, or None for abstaining, and what that rests on."""


@dataclass(frozen=True, slots=True)
class Text:
    """An item to be voted on, its tokens and its language."""

    item: Item
    piece: Piece
    language: str | None


def votes(
    bundle: Bundle, tables: Tables, texts: Sequence[Text], cut: Cut, asked: Smoothing
) -> Steps[list[Answer]]:
    """An answer for each text, or why it has none: synonyms are of a language."""
    options = smooth.Options(asked.samples, asked.alpha)
    seed = secrets.randbits(48) if asked.seed is None else asked.seed
    prepared: Sequence[_Noisy | _Rewritten | ItemError]
    if kind_of(bundle, asked) == SYNONYM:
        prepared = [_rewritten(bundle, tables, text, seed, cut, asked) for text in texts]
    else:
        noise, warning = chosen_noise(bundle, asked)
        prepared = [_noisy(text, seed, noise, warning, asked) for text in texts]
    ready = [one for one in prepared if not isinstance(one, ItemError)]
    labels = bundle.manifest.labels
    outcomes = yield from smooth.smooth([one.voter for one in ready], len(labels), options)
    answers: list[Answer] = []
    done = iter(zip(ready, outcomes, strict=True))
    for one in prepared:
        if isinstance(one, ItemError):
            answers.append(one)
            continue
        voter, outcome = next(done)
        shown = Votes(
            votes=dict(zip(labels, outcome.votes, strict=True)),
            draws=outcome.draws,
            seed=seed,
            lower_bound=outcome.lower_bound,
            certificate=voter.certificate(outcome, asked.alpha),
            warning=voter.warning,
        )
        answers.append((outcome.label, shown))
    return answers


@dataclass(frozen=True, slots=True)
class _Noisy:
    voter: NoisyText
    warning: str | None

    def certificate(self, outcome: Outcome, alpha: float) -> Certificate | None:
        if outcome.reach <= 0:
            return None
        noise = self.voter.noise
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
    voter: RewrittenText
    draws: Draws
    warning: str | None

    def certificate(self, outcome: Outcome, alpha: float) -> Certificate | None:
        if outcome.reach <= 0:
            return None
        return Certificate(
            norm="words",
            words=int(outcome.reach),
            of=len(self.voter.overlaps),
            at="words",
            noise=SYNONYM,
            synonyms=self.draws,
            alpha=alpha,
        )


def _noisy(text: Text, seed: int, noise: Noise, warning: str | None, asked: Smoothing) -> _Noisy:
    key = stream_key(seed, text.item)
    return _Noisy(NoisyText(text.piece, key, noise, asked.radius), warning)


def _rewritten(
    bundle: Bundle, tables: Tables, text: Text, seed: int, cut: Cut, asked: Smoothing
) -> _Rewritten | ItemError:
    table = None if text.language is None else tables.of(text.language)
    if table is None:
        return ItemError("no_synonyms", *_no_table(text.language, tables))
    draws = chosen_draws(bundle, asked)
    key = stream_key(seed, text.item)
    voter = RewrittenText(text.item, key, table, draws, asked.words, cut)
    return _Rewritten(voter, draws, synonym_warning(bundle, table, draws))


def _no_table(language: str | None, tables: Tables) -> tuple[str, str, str]:
    """Value, rule, remedy."""
    if language is None:
        return "", "the text's language is not known, and synonyms are of a language", "give it"
    if language in UNSPACED:
        rule = "is written without spaces between words, which synonyms need"
    else:
        rule = f"has no table of synonyms; there are those of {', '.join(tables.languages)}"
    return f"language={language}", rule, "use gaussian or uniform noise"


def refuse_unfit(
    bundle: Bundle, tables: Tables, asked: Smoothing, language: str | Sequence[str] | None = None
) -> None:
    """Votes need a graph whose logits don't depend on the batch, and options that fit the noise.
    Synonyms need a table, of the request's ``language`` if it has one."""
    kind = kind_of(bundle, asked)
    graph = "plain" if kind == SYNONYM else "perturbed"
    if graph not in bundle.manifest.graphs:
        others = [
            name
            for name in bundles.shipped()
            if graph in bundles.read_manifest(bundles.MODELS / name / bundles.MANIFEST).graphs
        ]
        raise UsageError(
            f"mode=smoothed on {bundle.manifest.name}",
            f"needs a bundle with the {graph} graph",
            f"use {' or '.join(others)}, or export with --graphs {graph}"
            if others
            else f"export with --graphs {graph}",
        )
    checked = bundle.manifest.checks.get("invariance", {}).get(graph)
    if checked is not None and not checked.get("holds"):
        raise UsageError(
            f"mode=smoothed on {bundle.manifest.name}",
            f"its logits move by {checked.get('largest_difference'):.1e} with the batch, which voids"
            " certificates",
            "export with --precision fp32",
        )
    if kind != SYNONYM:
        if asked.words is not None or asked.synonyms is not None:
            raise UsageError("words, synonyms", "are for noise=synonym", "give a radius")
        chosen_noise(bundle, asked)
        return
    for name in ("radius", "scale"):
        if getattr(asked, name) is not None:
            raise UsageError(f"{name} with noise=synonym", "is for other noise", "give words")
    chosen_draws(bundle, asked)
    if not tables.languages:
        raise UsageError(
            "noise=synonym",
            f"the bundle {bundle.manifest.name} has no table of synonyms",
            "use gaussian or uniform, or give one at export or start: --synonyms en=FILE",
        )
    if not isinstance(language, str | None):  # a pair of mixed languages, as the wire has it
        raise UsageError(
            f"language={', '.join(language)}",
            "a table of synonyms is of one language",
            "use gaussian or uniform noise",
        )
    if language is not None and tables.of(language) is None:
        raise UsageError(*_no_table(language, tables))


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


def chosen_noise(bundle: Bundle, asked: Smoothing) -> tuple[Noise, str | None]:
    """The noise asked for, else that of training; a warning where the two differ."""
    trained = bundle.manifest.noise
    at = cast(Place, trained.get("at", "embeddings"))
    kind, scale = asked.noise or trained.get("kind"), asked.scale
    if scale is None and kind == trained.get("kind"):
        scale = trained.get("scale")
    if kind is None or scale is None:
        raise UsageError(
            f"noise={asked.noise}, scale={asked.scale}",
            f"the bundle {bundle.manifest.name} was trained without such noise and has no default",
            "give both noise and scale",
        )
    noise = Noise(cast(Kind, kind), float(scale), at)
    if "kind" not in trained:
        return noise, "the model was trained without noise: expect few votes to agree"
    if (noise.kind, noise.scale) != (trained["kind"], trained["scale"]):
        return noise, f"the model was trained with {trained['kind']} noise of {trained['scale']}"
    return noise, None
