"""Soft prompts: trained vectors in front of a frozen encoder (Lester 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from xlt_serve.errors import UsageError
from xlt_training.loop.method import Context, Method, Trait, least_problems
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch


class Prompt(nn.Module):
    """``length`` vectors put after the first token, as words; positions behind them move on."""

    def __init__(self, length: int, width: int, deviation: float) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(length, width) * deviation)

    @property
    def length(self) -> int:
        return len(self.vectors)

    def insert(self, rows: Tensor, filling: Tensor) -> Tensor:
        """``filling`` [length, …] after the first column of ``rows`` [batch, length, …]."""
        repeated = filling.expand(rows.shape[0], *filling.shape)
        return torch.cat([rows[:, :1], repeated.to(rows.dtype), rows[:, 1:]], dim=1)

    def remove(self, states: Tensor) -> Tensor:
        return torch.cat([states[:, :1], states[:, 1 + self.length :]], dim=1)


@dataclass
class SoftPrompt(Method):
    """Trained prompt vectors after the first token; encoder frozen, head trained. Rate 1e-2.

    Data: none. Composes with everything but another method that freezes and those that read
    attention maps or mix streams.
    """

    traits = frozenset({Trait.FREEZES, Trait.FREEZES_ALL, Trait.INSERTS_POSITIONS})

    length: int = 20  # number of prompt vectors

    def problems(self) -> list[str]:
        return least_problems(self, 1, "length")

    def attach(self, model: Classifier) -> None:
        if self.length > model.room - 8:
            raise UsageError(
                f"soft_prompt.length = {self.length}", f"the encoder has {model.room} positions"
            )
        words = cast(nn.Embedding, model.base.get_input_embeddings()).weight
        prompt = Prompt(self.length, words.shape[1], float(words.detach().std()))
        model.slots["prompt"] = prompt.to(model.device)
        model.encoding.max_length = min(model.encoding.max_length, model.room)

    def prepare(self, model: Classifier, batches: Sequence[Batch], context: Context) -> None:
        for _, parameter in model.encoder_parameters():
            parameter.requires_grad_(False)
