"""Paired prediction (X-Mixup): a text and its translation through one graph, two streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.calibration import probabilities
from xlt_serve.errors import ItemError, UsageError
from xlt_serve.modes.base import Context, Cost, labelled
from xlt_serve.modes.translate import ReadsTranslations, TranslatedJob
from xlt_serve.runtime.graph_io import PairedIO, PairedRow
from xlt_serve.runtime.steps import RunRequest, Steps
from xlt_serve.types import Prediction, Settings

GRAPH = PairedIO.name


class Paired(ReadsTranslations):
    """The mean of both streams' calibrated probabilities; the ratio is λ."""

    name = "paired"
    mixes = True
    fields = ("mixed", "ratio", "translation", "translator", "quality", "reason")

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
    ) -> Steps[list[tuple[Prediction, float | None]]]:
        if not jobs:
            return []
        rows = [PairedRow(each.job.tokens.pieces[0], each.tokens.pieces[0]) for each in jobs]
        outputs = yield RunRequest(GRAPH, rows)
        temperature = context.bundle.manifest.temperature(GRAPH)
        answers: list[tuple[Prediction, float | None]] = []
        for number, each in enumerate(jobs):
            try:
                mine = outputs.rows(number, number + 1)
            except ItemError as error:
                answers.append((context.refused(self.name, error), None))
                continue
            [mean] = probabilities(PairedIO.logits_of(mine), temperature)
            answer = labelled(context, self.name, each.job, mean, settings, GRAPH)
            truncated = answer.truncated or each.tokens.truncated
            answers.append((replace(answer, truncated=truncated), float(mine["ratio"][0])))
        return answers
