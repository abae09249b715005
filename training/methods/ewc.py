"""EWC: stay near the pretrained weights where another language needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from training import fisher
from training.method import Context, Method, Objective
from training.methods.l2_anchor import anchors, squared_distance
from training.network import Classifier
from training.types import Batch, Loss
from xlt_serve.errors import UsageError


def normalised(values: Sequence[Tensor]) -> list[Tensor]:
    """A Fisher divided by its mean over all parameters, so that strength means what it does for L2."""
    mean = torch.stack([v.sum() for v in values]).sum() / sum(v.numel() for v in values)
    return [v / mean for v in values]


@dataclass
class EWC(Method):
    """``loss + strength/2 · Σ_languages Σ F (θ − θ*)²``, F the masked-language-model Fisher.

    ``fisher``: languages, a penalty each; ``mix``: languages whose text was mixed into one Fisher.
    Data: files that ``xlt fisher`` writes into ``folder``. Composes like ``l2_anchor``.
    """

    folder: str = "fisher"
    fisher: list[str] = field(default_factory=list)
    mix: list[str] = field(default_factory=list)
    strength: float = 0.01

    def prepare(self, model: Classifier, batches: Sequence[Batch], context: Context) -> None:
        names = [*self.fisher, *(["+".join(self.mix)] if self.mix else [])]
        if not names:
            raise UsageError("ewc", "needs fisher = ['fr'] or mix = ['fr', 'en']")
        self._held = anchors(model.base)
        name_of = {parameter: name for name, parameter in model.base.named_parameters()}
        self._fishers: list[list[Tensor]] = []
        for name in names:
            stored = fisher.load(Path(self.folder), name)
            values = []
            for parameter, _ in self._held:
                # The pooler is not part of the masked language model: its Fisher is zero.
                value = stored.get(name_of[parameter])
                values.append(torch.zeros_like(parameter) if value is None else value)
            self._fishers.append([v.to(model.device) for v in normalised(values)])

    def objective(self, model: Classifier, batch: Batch, inner: Objective) -> Loss:
        loss = inner(model, batch)
        penalty = torch.stack([squared_distance(self._held, f) for f in self._fishers]).sum()
        term = 0.5 * self.strength * penalty
        return replace(loss, total=loss.total + term, terms=loss.terms | {"ewc": term})
