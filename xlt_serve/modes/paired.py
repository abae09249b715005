"""A text and its translation through the paired graph: two streams, one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.calibration import probabilities
from xlt_serve.errors import UsageError
from xlt_serve.runtime.graph_io import PairedRow
from xlt_serve.runtime.steps import RunRequest, Steps

GRAPH = "paired"


@dataclass(frozen=True, slots=True)
class Mixed:
    """``probabilities`` [labels]: the mean of both streams' calibrated ones; ``ratio`` is λ."""

    probabilities: npt.NDArray[np.float64]
    ratio: float


def mixed(bundle: Bundle, rows: Sequence[PairedRow]) -> Steps[list[Mixed]]:
    """One answer for each row."""
    if not rows:
        return []
    outputs = yield RunRequest(GRAPH, rows)
    streams = np.stack([outputs["target_logits"], outputs["source_logits"]], axis=1)
    means = probabilities(streams, bundle.manifest.temperature(GRAPH))
    return [Mixed(mean, float(ratio)) for mean, ratio in zip(means, outputs["ratio"], strict=True)]


def refuse_unfit(bundle: Bundle, others: Sequence[str] | None = None) -> None:
    """``others``: the bundles at hand that have the graph; by default those that ship."""
    if GRAPH in bundle.manifest.graphs:
        return
    shipped = bundles.shipped_with(GRAPH)
    others = shipped if others is None else others
    remedy = "train with xmixup and export with --graphs paired, or use mode=translate"
    raise UsageError(
        f"mode=paired on {bundle.manifest.name}",
        "needs a bundle with the paired graph",
        f"use bundle={' or '.join(others)}; or {remedy}"
        if others
        else f"serve {' or '.join(shipped)} beside it; or {remedy}",
    )
