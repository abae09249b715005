"""EWC: stay near the pretrained weights where another language needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from xlt_serve.errors import UsageError
from xlt_training.loop import fisher
from xlt_training.loop.method import Context, Method, Objective, Trait
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Loss
from xlt_training.methods.l2_anchor import anchors, squared_distance


def normalised(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A Fisher divided by its mean over all of the encoder's parameters, trained or frozen, so that
    strength means what it does for L2."""
    mean = sum(v.sum() for v in values.values()) / sum(v.numel() for v in values.values())
    return {name: value / mean for name, value in values.items()}


@dataclass
class EWC(Method):
    """``loss + strength/2 · Σ_languages Σ F (θ − θ*)²``, F the masked-language-model Fisher.

    ``fisher``: languages, a penalty each; ``mix``: languages whose text was mixed into one Fisher.
    The paper trains a model for each target language, with that language's Fisher. Data: files that
    ``xlt fisher`` writes into ``folder``. Composes like ``l2_anchor``.
    """

    traits = frozenset({Trait.PENALTY, Trait.ANCHOR})

    folder: str = "fisher"  # of what ``xlt fisher`` wrote
    fisher: list[str] = field(default_factory=list)  # languages, a penalty each
    mix: list[str] = field(default_factory=list)  # languages whose text was mixed into one Fisher
    strength: float = 0.01  # of the penalty

    def names(self) -> list[str]:
        """Of the files that it reads."""
        return [*self.fisher, *(["+".join(self.mix)] if self.mix else [])]

    def reads(self) -> list[Path]:
        return [fisher.file_of(Path(self.folder), name) for name in self.names()]

    def prepare(self, model: Classifier, batches: Sequence[Batch], context: Context) -> None:
        if not self.names():
            raise UsageError("ewc", "needs fisher = ['fr'] or mix = ['fr', 'en']")
        shapes = {name: p.shape for name, p in model.encoder_parameters()}
        # The pooler has no part in language modelling: its Fisher is zero.
        self._held = anchors(model, context.pretrained, shapes)
        trained = [name for name, p in model.encoder_parameters() if p.requires_grad]
        self._fishers: list[list[Tensor]] = []
        for name in self.names():
            values = fisher.load(Path(self.folder), name, shapes, context.encoder)
            made = normalised({key: values[key] for key in shapes})
            self._fishers.append([made[key].to(model.device) for key in trained])

    def objective(self, model: Classifier, batch: Batch, inner: Objective) -> Loss:
        loss = inner(model, batch)
        penalty = torch.stack([squared_distance(self._held, f) for f in self._fishers]).sum()
        term = 0.5 * self.strength * penalty
        return replace(loss, total=loss.total + term, terms=loss.terms | {"ewc": term})
