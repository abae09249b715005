"""Attacks on certificates, and the served smoothed predictor that judges them.

A certificate is broken if, inside the certified set, a fresh prediction at level alpha answers another
label. Attacks search with all they may know, torch gradients included; only the judge is served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F
from xlt_training.loop.network import Classifier as Network
from xlt_training.loop.types import Example

from xlt_serve.classifier import Classifier
from xlt_serve.modes.draws import NoisyText, polled
from xlt_serve.runtime.batching import plan
from xlt_serve.runtime.graph_io import PerturbedIO, PerturbedRow
from xlt_serve.runtime.runners import Runner
from xlt_serve.runtime.steps import Outputs, RunRequest, drive, join
from xlt_serve.smoothing.noise import Noise, stream_key
from xlt_serve.smoothing.substitution import Sentence
from xlt_serve.smoothing.votes import PollOptions, PollOutcome
from xlt_serve.text.synonyms import Draws, Table

Shift = npt.NDArray[np.float32]


# The served predictor, with a perturbation of E(x) added through the graph's noise input


@dataclass(frozen=True, slots=True)
class ShiftedRow(PerturbedRow):
    shift: Shift | None = None  # [tokens, width]


class ShiftedText(NoisyText):
    """A text that an attacker has moved: f(E(x) + shift + δ)."""

    def __init__(self, text: NoisyText, shift: Shift | None) -> None:
        super().__init__(text.piece, text.key, text.noise, text.radius)
        self.shift = shift

    def rows(self, numbers: Sequence[int]) -> list[PerturbedRow]:
        return [
            ShiftedRow(row.piece, row.key, row.number, row.noise, self.shift)
            for row in super().rows(numbers)
        ]


class ShiftedIO(PerturbedIO):
    """``silent``: no noise of its own, the shift alone."""

    silent = False

    def noise(self, rows: Sequence[PerturbedRow], longest: int) -> npt.NDArray[np.float32]:
        out = super().noise(rows, longest)
        if self.silent:
            out[:] = 0
        for place, row in zip(out, rows, strict=True):
            if isinstance(row, ShiftedRow) and row.shift is not None:
                place[: len(row.shift)] += row.shift
        return out


def shifted_votes(
    served: Classifier, texts: Sequence[ShiftedText], options: PollOptions
) -> list[PollOutcome]:
    """Smoothed predictions of shifted texts."""
    run = _runner(served, silent=False)
    return drive(polled(texts, len(served.labels), options), run)


def shifted_labels(served: Classifier, texts: Sequence[ShiftedText]) -> list[int]:
    """Plain predictions of shifted texts: one pass each, the shift and nothing else."""
    run = _runner(served, silent=True)
    logits = run(RunRequest("perturbed", [row for text in texts for row in text.rows([0])]))[
        "logits"
    ]
    return [int(label) for label in logits.argmax(axis=1)]


def _runner(served: Classifier, silent: bool) -> Any:
    session = served.runners.of("perturbed").session
    io = ShiftedIO(session.dims, served.bundle.manifest.pad_id)
    io.silent = silent
    runner = Runner(session, io)

    def run(request: RunRequest) -> Outputs:
        batches = plan([row.length for row in request.rows], served.budget)
        rows: Any = request.rows
        return join([(b, runner.run([rows[i] for i in b])) for b in batches], len(rows))

    return run


def noisy_text(
    served: Classifier, text: str, seed: int, noise: Noise, radius: float | None = None
) -> NoisyText:
    [tokens] = served.encoder.encode([text])
    assert not isinstance(tokens, Exception)
    return NoisyText(tokens.pieces[0], stream_key(seed, text), noise, radius)


# Projected gradients on E(x)


def pgd(
    network: Network,
    example: Example,
    label: int,
    sigma: float,
    radius: float,
    *,
    steps: int = 20,
    draws: int = 8,
    seed: int = 0,
) -> Shift:
    """[tokens, width], ‖shift‖₂ < radius: raises the mean loss of ``label`` under noise (EOT). Random
    start, steps along the normalised gradient, projected onto the ball."""
    generator = torch.Generator().manual_seed(seed)
    batch = network.batch([example] * draws)
    with torch.no_grad():
        embedded = network.embed(batch)
    shape = embedded.shape[1:]
    target = torch.full((draws,), label)
    most = 0.999 * radius
    shift = _within(torch.randn(shape, generator=generator), most) * 0.5
    for _ in range(steps):
        shift.requires_grad_(True)
        noise = sigma * torch.randn(embedded.shape, generator=generator)
        out = network(replace(batch, embeddings=embedded + shift + noise))
        [gradient] = torch.autograd.grad(F.cross_entropy(out.logits, target), shift)
        step = _within(gradient, 2.5 * most / steps, exactly=True)
        shift = _within((shift + step).detach(), most)
    return shift.detach().numpy().astype(np.float32)


def _within(shift: Tensor, radius: float, exactly: bool = False) -> Tensor:
    """Scaled down to the ball of this radius, or onto its sphere."""
    norm = shift.norm().clamp(min=1e-12)
    return shift * (radius / norm if exactly else min(1.0, radius / float(norm)))


# Substitution of synonyms


def substitution(
    served: Classifier,
    text: str,
    label: int,
    table: Table,
    draws: Draws,
    budget: int,
    sweeps: int = 1,
) -> str:
    """Greedy: the one substitution that lowers the plain model's margin of ``label`` most, again and
    again, up to ``budget`` changed words. In groups, the certificate has no budget."""
    sentence = Sentence(text, table, draws)
    if not sentence.sizes:
        return text
    own = sentence.own
    current = list(own)
    for _ in range(sweeps * len(own)):
        changed = sum(a != b for a, b in zip(current, own, strict=True))
        tried = [
            [*current[:place], number, *current[place + 1 :]]
            for place, size in enumerate(sentence.sizes)
            for number in range(size)
            if number != current[place] and (changed < budget or current[place] != own[place])
        ]
        if not tried:
            break
        margins = _margins(
            served, [sentence.drawn(numbers) for numbers in (current, *tried)], label
        )
        best = int(margins.argmin())
        if best == 0:
            break
        current = tried[best - 1]
    return sentence.drawn(current)


def _margins(served: Classifier, texts: Sequence[str], label: int) -> npt.NDArray[Any]:
    """The label's logit less the largest other."""
    pieces = [tokens.pieces[0] for tokens in served.encoder.encode(texts)]  # type: ignore[union-attr]
    logits = served.logits(pieces)
    others = np.delete(logits, label, axis=1)
    return np.asarray(logits[:, label] - others.max(axis=1))
