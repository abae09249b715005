"""A text and its translation through the paired graph: two streams, one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.calibrate import probabilities
from xlt_serve.errors import UsageError
from xlt_serve.session import Session, pad
from xlt_serve.steps import Ask, Outputs, Steps
from xlt_serve.tokens import Piece

GRAPH = "paired"


@dataclass(frozen=True, slots=True)
class PairedRow:
    """``target`` is the text as it came, ``source`` its translation."""

    target: Piece
    source: Piece

    @property
    def length(self) -> int:
        return self.target.length + self.source.length


class PairedRunner:
    """Rows are ``PairedRow``s; the outputs are target_logits, source_logits and ratio."""

    def __init__(self, session: Session, pad_id: int) -> None:
        self.session, self.pad_id = session, pad_id

    def run(self, rows: Sequence[PairedRow]) -> Outputs:
        given: dict[str, npt.NDArray[Any]] = {}
        streams = (("input_ids", "attention_mask"), ("source_ids", "source_mask"))
        sides = ([row.target for row in rows], [row.source for row in rows])
        for (ids, mask), types, pieces in zip(
            streams, ("token_type_ids", "source_type_ids"), sides, strict=True
        ):
            given[ids], given[mask] = pad([piece.ids for piece in pieces], self.pad_id)
            if types in self.session.inputs:
                given[types] = pad([piece.type_ids for piece in pieces], 0)[0]
        return self.session.run(given)


@dataclass(frozen=True, slots=True)
class Mixed:
    """``probabilities`` [labels]: the mean of both streams' calibrated ones; ``ratio`` is λ."""

    probabilities: npt.NDArray[np.float64]
    ratio: float


def mixed(bundle: Bundle, rows: Sequence[PairedRow]) -> Steps[list[Mixed]]:
    """One answer for each row."""
    if not rows:
        return []
    outputs = yield Ask(GRAPH, rows)
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
