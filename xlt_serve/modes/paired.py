"""Paired prediction (X-Mixup): a text and its translation through one graph, two streams."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.calibration import softmax
from xlt_serve.errors import ItemError, UsageError
from xlt_serve.modes.base import Context, Cost, labelled
from xlt_serve.modes.translate import ReadsTranslations, TranslatedJob, WithTranslation
from xlt_serve.modes.vote import Vote, mean
from xlt_serve.runtime.graph_io import PairedIO, PairedRow
from xlt_serve.runtime.steps import RunRequest, Steps
from xlt_serve.types import Settings, Untranslated

GRAPH = PairedIO.name
AGREEMENT = "agreement"
"""The output of the graph; bundles of the first edition have none."""


class Paired(ReadsTranslations):
    """The mean of both streams' calibrated probabilities, by the vote that the export has fitted, else
    half and half; the ratio is λ."""

    name = "paired"
    mixes = True
    fields = (
        "mixed",
        "ratio",
        "agreement",
        "weight",
        "translation",
        "translator",
        "quality",
        "reason",
    )

    def cost(self, context: Context, settings: Settings) -> Cost:
        return Cost(passes=2)

    def refuse_unfit(
        self, context: Context, settings: Settings, served: Mapping[str, Bundle] | None = None
    ) -> None:
        if GRAPH in context.bundle.manifest.graphs:
            return
        shipped = bundles.shipped_with(GRAPH)
        others = shipped
        if served is not None:
            others = [name for name, b in served.items() if GRAPH in b.manifest.graphs]
        remedy = "train with xmixup and export with --graphs paired, or use mode=translate"
        raise UsageError(
            f"mode=paired on {context.name}",
            "needs a bundle with the paired graph",
            f"use bundle={' or '.join(others)}; or {remedy}"
            if others
            else f"serve {' or '.join(shipped)} beside it; or {remedy}",
        )

    def predicted(
        self, context: Context, jobs: Sequence[TranslatedJob], settings: Settings
    ) -> Steps[list[WithTranslation | Untranslated]]:
        if not jobs:
            return []
        rows = [PairedRow(each.job.tokens.pieces[0], each.tokens.pieces[0]) for each in jobs]
        outputs = yield RunRequest(GRAPH, rows)
        manifest = context.bundle.manifest
        temperature, vote = manifest.temperature(GRAPH), Vote()
        if AGREEMENT in manifest.graphs[GRAPH].outputs:
            vote = Vote.fitted(manifest.calibration.get(GRAPH, {}))
        out: list[WithTranslation | Untranslated] = []
        for number, each in enumerate(jobs):
            try:
                mine = outputs.rows(number, number + 1)
            except ItemError as error:
                out.append(WithTranslation(context.refused(self.name, error)))
                continue
            agreement = float(mine[AGREEMENT][0]) if AGREEMENT in mine else math.nan
            if (why := vote.turned_down(agreement)) is not None:
                out.append(why)
                continue
            weight = vote.weight(agreement) if vote.listens else 0.5
            text, translation = softmax(PairedIO.logits_of(mine), temperature)[0]
            given = mean(weight, text, translation)
            answer = labelled(context, self.name, each.job, given, settings, GRAPH)
            truncated = answer.truncated or each.tokens.truncated
            answer, ratio = replace(answer, truncated=truncated), float(mine["ratio"][0])
            if AGREEMENT in mine:
                out.append(WithTranslation(answer, ratio, agreement, weight))
            else:
                out.append(WithTranslation(answer, ratio))
        return out
