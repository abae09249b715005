"""Plain prediction: each text once through the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xlt_serve.calibration import softmax
from xlt_serve.errors import ItemError
from xlt_serve.modes.base import Asked, Context, Cost, Job, Mode, Reading, labelled
from xlt_serve.runtime.steps import RunRequest, Steps
from xlt_serve.types import Prediction, Settings


class Plain(Mode):
    """The calibrated probabilities of each item."""

    name = "plain"
    windows = True

    def cost(self, context: Context, settings: Settings) -> Cost:
        return Cost(light=True)

    def steps(self, context: Context, asked: Asked) -> Steps[list[Prediction]]:
        reading = Reading(context, self, asked)
        jobs = reading.jobs()
        answers = yield from classified(context, jobs, asked.settings)
        return reading.in_order({j.index: a for j, a in zip(jobs, answers, strict=True)})


def classified(
    context: Context, jobs: Sequence[Job], settings: Settings
) -> Steps[list[Prediction]]:
    """Of each job, the mean over its windows weighted by their tokens."""
    pieces = [piece for job in jobs for piece in job.tokens.pieces]
    if not pieces:
        return []
    outputs = yield RunRequest("plain", pieces)
    temperature = context.bundle.manifest.temperature("plain")
    out, start = [], 0
    for job in jobs:
        end = start + len(job.tokens.pieces)
        try:
            rows = softmax(outputs.rows(start, end)["logits"], temperature)
        except ItemError as error:
            out.append(context.refused(Plain.name, error))
        else:
            weights = np.array([piece.length for piece in job.tokens.pieces], dtype=np.float64)
            mean = weights @ rows / weights.sum()
            out.append(labelled(context, Plain.name, job, mean, settings))
        start = end
    return out
