"""The perturbed graph of a bundle, asked for votes."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from xlt_serve import bundle as bundles
from xlt_serve import smooth
from xlt_serve.bundle import Bundle
from xlt_serve.errors import UsageError
from xlt_serve.graphs import open_graph
from xlt_serve.noise import Kind, Noise, Place, stream_key
from xlt_serve.schema import Certificate, Item, Smoothing, Votes
from xlt_serve.session import Options, pad
from xlt_serve.shapes import split
from xlt_serve.tokens import Piece

GRAPH = "perturbed"


class Smoother:
    """Votes of noisy draws. Made once for a bundle; may be asked from several threads."""

    def __init__(self, bundle: Bundle, options: Options | None, budget: int) -> None:
        refuse_unfit(bundle)
        self.bundle, self.budget = bundle, budget
        self.labels = bundle.manifest.labels
        self.session = open_graph(bundle, GRAPH, options, budget)
        _, *dims = (split(dim) for dim in self.session.dims["noise"])
        self.width = dims[-1][1]
        # Positions of soft prompts; None: the noise has no positions at all.
        self.extra = dims[0][1] if len(dims) == 2 else None

    def answers(
        self, items: Sequence[Item], pieces: Sequence[Piece], asked: Smoothing
    ) -> list[tuple[int | None, Votes]]:
        """For each item its label's number, or None for abstaining, and what that rests on."""
        noise, warning = chosen_noise(self.bundle, asked)
        options = smooth.Options(asked.samples, asked.alpha, asked.radius)
        seed = secrets.randbits(48) if asked.seed is None else asked.seed
        keys = [stream_key(seed, item) for item in items]
        outcomes = smooth.smooth(
            pieces, keys, len(self.labels), noise, options, self._run, self._shape, self.budget
        )
        return [(o.label, self._described(o, noise, asked, seed, warning)) for o in outcomes]

    def _shape(self, piece: Piece) -> tuple[int, ...]:
        if self.extra is None:
            return (self.width,)
        return (len(piece.ids) + self.extra, self.width)

    def _run(
        self, texts: list[Piece], rows: list[int], noises: list[npt.NDArray[np.float32]]
    ) -> npt.NDArray[np.float32]:
        ids, mask = pad([piece.ids for piece in texts], self.bundle.manifest.pad_id)
        feeds: dict[str, npt.NDArray[Any]] = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self.session.inputs:
            feeds["token_type_ids"] = pad([piece.type_ids for piece in texts], 0)[0]
        feeds["row"] = np.array(rows, dtype=np.int64)
        if self.extra is None:
            feeds["noise"] = np.stack(noises)
        else:
            shape = (len(noises), ids.shape[1] + self.extra, self.width)
            feeds["noise"] = np.zeros(shape, dtype=np.float32)
            for number, noise in enumerate(noises):
                feeds["noise"][number, : len(noise)] = noise
        logits: npt.NDArray[np.float32] = self.session.run(feeds)["logits"]
        return logits

    def _described(
        self,
        outcome: smooth.Outcome,
        noise: Noise,
        asked: Smoothing,
        seed: int,
        warning: str | None,
    ) -> Votes:
        certificate = None
        if outcome.radius > 0:
            certificate = Certificate(
                noise.norm, outcome.radius, noise.at, noise.kind, noise.scale, asked.alpha
            )
        votes = dict(zip(self.labels, outcome.votes, strict=True))
        return Votes(votes, outcome.draws, seed, outcome.lower_bound, certificate, warning)


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
