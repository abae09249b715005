"""The student: an ordinary XLM-R with its masked-language-model head, and a projection to the teacher."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

IGNORED = -100


@dataclass(frozen=True)
class Vectors:
    """first, mean: [batch, teacher width], unit length; hidden: [batch, length, width]."""

    first: Tensor
    mean: Tensor
    hidden: Tensor


class Student(nn.Module):
    def __init__(
        self, config: XLMRobertaConfig, teacher_width: int, bfloat16: bool = False
    ) -> None:
        super().__init__()
        self.in_bfloat16 = bfloat16  # Module has a method called bfloat16
        self.language_model = XLMRobertaForMaskedLM(config)
        self.projection = nn.Linear(config.hidden_size, teacher_width)

    def vectors(self, input_ids: Tensor, attention_mask: Tensor) -> Vectors:
        encoder = self.language_model.roberta
        with torch.autocast("cpu", torch.bfloat16, enabled=self.in_bfloat16):
            hidden = encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        hidden = hidden.float()
        real = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * real).sum(1) / real.sum(1)
        return Vectors(
            first=F.normalize(self.projection(hidden[:, 0]), dim=-1),
            mean=F.normalize(self.projection(mean), dim=-1),
            hidden=hidden,
        )


def losses(
    student: Student,
    input_ids: Tensor,
    attention_mask: Tensor,
    words: Tensor,
    aims: Tensor,
    teacher: Tensor,
    negatives: Tensor,
    temperature: float,
) -> dict[str, Tensor]:
    """The terms by name. ``aims`` [batch] are target numbers, -1 for none; ``teacher`` their vectors;
    ``words`` [batch, length] the hidden pieces, IGNORED elsewhere; ``negatives`` [n, teacher width]."""
    out = student.vectors(input_ids, attention_mask)
    terms: dict[str, Tensor] = {}
    taught = aims >= 0
    if taught.any():
        goal, numbers = teacher[taught], aims[taught]
        first, mean = out.first[taught], out.mean[taught]
        terms["follow"] = (1 - (first * goal).sum(-1)).mean()
        terms["follow_mean"] = (1 - (mean * goal).sum(-1)).mean()
        scores = first @ torch.cat([goal, negatives]).T / temperature
        own = torch.eye(len(goal), dtype=torch.bool)
        twin = (numbers[:, None] == numbers[None, :]) & ~own
        scores[:, : len(goal)] = scores[:, : len(goal)].masked_fill(twin, float("-inf"))
        terms["contrast"] = F.cross_entropy(scores, torch.arange(len(goal)))
    hidden_words = words != IGNORED
    if hidden_words.any():
        with torch.autocast("cpu", torch.bfloat16, enabled=student.in_bfloat16):
            logits = student.language_model.lm_head(out.hidden[hidden_words]).float()
        terms["masked_words"] = F.cross_entropy(logits, words[hidden_words])
    return terms
