"""A smoothed prediction of a bundle: which noise, which votes, and what they certify."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import cast

from xlt_serve import bundle as bundles
from xlt_serve import smooth
from xlt_serve.bundle import Bundle
from xlt_serve.errors import UsageError
from xlt_serve.noise import Kind, Noise, Place, stream_key
from xlt_serve.schema import Certificate, Item, Smoothing, Votes
from xlt_serve.smooth import GRAPH
from xlt_serve.steps import Steps
from xlt_serve.tokens import Piece


def votes(
    bundle: Bundle, items: Sequence[Item], pieces: Sequence[Piece], asked: Smoothing
) -> Steps[list[tuple[int | None, Votes]]]:
    """For each item its label's number, or None for abstaining, and what that rests on."""
    noise, warning = chosen_noise(bundle, asked)
    options = smooth.Options(asked.samples, asked.alpha, asked.radius)
    seed = secrets.randbits(48) if asked.seed is None else asked.seed
    keys = [stream_key(seed, item) for item in items]
    labels = bundle.manifest.labels
    outcomes = yield from smooth.smooth(pieces, keys, len(labels), noise, options)
    return [
        (
            outcome.label,
            Votes(
                votes=dict(zip(labels, outcome.votes, strict=True)),
                draws=outcome.draws,
                seed=seed,
                lower_bound=outcome.lower_bound,
                certificate=certificate(outcome, noise, asked.alpha),
                warning=warning,
            ),
        )
        for outcome in outcomes
    ]


def certificate(outcome: smooth.Outcome, noise: Noise, alpha: float) -> Certificate | None:
    if outcome.radius <= 0:
        return None
    return Certificate(noise.norm, outcome.radius, noise.at, noise.kind, noise.scale, alpha)


def refuse_unfit(bundle: Bundle) -> None:
    """Votes need the perturbed graph, and one whose logits don't depend on the batch."""
    if GRAPH not in bundle.manifest.graphs:
        others = [
            name
            for name in bundles.shipped()
            if GRAPH in bundles.read_manifest(bundles.MODELS / name / bundles.MANIFEST).graphs
        ]
        raise UsageError(
            f"mode=smoothed on {bundle.manifest.name}",
            "needs a bundle with the perturbed graph",
            f"use {' or '.join(others)}, or export with --graphs perturbed"
            if others
            else "export with --graphs perturbed",
        )
    checked = bundle.manifest.checks.get("invariance", {}).get(GRAPH)
    if checked is not None and not checked.get("holds"):
        raise UsageError(
            f"mode=smoothed on {bundle.manifest.name}",
            f"its logits move by {checked.get('largest_difference'):.1e} with the batch, which voids"
            " certificates",
            "export with --precision fp32",
        )


def chosen_noise(bundle: Bundle, asked: Smoothing) -> tuple[Noise, str | None]:
    """The noise asked for, else that of training; a warning where the two differ."""
    trained = bundle.manifest.noise
    at = cast(Place, trained.get("at", "embeddings"))
    if asked.noise == "synonym":
        raise UsageError(
            "noise=synonym", "this bundle has no table of synonyms", "use gaussian or uniform"
        )
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
