"""The student: an ordinary XLM-R with its masked-language-model head, a projection to the teacher,
and heads for auxiliary tasks that are left behind when training ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

IGNORED = -100
TASKS = {"entailment": 3, "paraphrase": 2}  # labels of each


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
        # Sentences are short: torch's fused attention is slower for them on a CPU, backwards above all.
        config._attn_implementation = "eager"
        self.language_model = XLMRobertaForMaskedLM(config)
        self.language_model.roberta.embeddings.word_embeddings.sparse = True  # see row_adam
        self.projection = nn.Linear(config.hidden_size, teacher_width)
        width = config.hidden_size
        self.heads = nn.ModuleDict(
            {
                task: nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, labels))
                for task, labels in TASKS.items()
            }
        )

    @property
    def table(self) -> nn.Parameter:
        """The word embeddings, which are the weights of the masked-word head too."""
        words: nn.Embedding = self.language_model.roberta.embeddings.word_embeddings
        weight = words.weight
        assert isinstance(weight, nn.Parameter)
        return weight

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

    def word_logits(self, hidden: Tensor, candidates: Tensor) -> Tensor:
        """[n, candidates]: the masked-word head for some pieces alone."""
        head = self.language_model.lm_head
        with torch.autocast("cpu", torch.bfloat16, enabled=self.in_bfloat16):
            vectors = head.layer_norm(F.gelu(head.dense(hidden)))
            weights = F.embedding(candidates, self.table, sparse=True)
            logits: Tensor = (vectors @ weights.T).float() + head.decoder.bias[candidates]
        return logits


@dataclass(frozen=True)
class Goals:
    """What a batch is to reach, beside its own ``aims``.

    teacher: [batch, teacher width], of rows without a teacher anything; negatives: [n, teacher
    width]; pieces: [m] drawn at random among all, rivals of the masked words.
    """

    teacher: Tensor
    negatives: Tensor
    pieces: Tensor


def losses(
    student: Student,
    input_ids: Tensor,
    attention_mask: Tensor,
    words: Tensor,
    aims: Tensor,
    labels: Mapping[str, Tensor],
    goals: Goals,
    temperature: float,
) -> dict[str, Tensor]:
    """The terms by name. ``aims`` [batch] are target numbers, -1 for none; ``words`` [batch, length]
    the hidden pieces and ``labels`` [batch] the answers of each task, IGNORED elsewhere."""
    out = student.vectors(input_ids, attention_mask)
    terms: dict[str, Tensor] = {}
    taught = aims >= 0
    if taught.any():
        goal, numbers = goals.teacher[taught], aims[taught]
        first, mean = out.first[taught], out.mean[taught]
        terms["follow"] = (1 - (first * goal).sum(-1)).mean()
        terms["follow_mean"] = (1 - (mean * goal).sum(-1)).mean()
        terms["contrast"] = contrast(first, goal, numbers, goals.negatives, temperature)
    hidden_words = words != IGNORED
    if hidden_words.any():
        terms["masked_words"] = masked_words(
            student, out.hidden[hidden_words], words[hidden_words], input_ids, goals.pieces
        )
    for task, answers in labels.items():
        asked = answers != IGNORED
        if asked.any():
            logits = student.heads[task](out.hidden[asked, 0])
            # Of the whole batch: one pair among many rows must not weigh as much as all of them.
            total = F.cross_entropy(logits, answers[asked], reduction="sum")
            terms[task] = total / len(answers)
    return terms


def contrast(
    first: Tensor, goal: Tensor, numbers: Tensor, negatives: Tensor, temperature: float
) -> Tensor:
    """To find the own goal among those of the batch and ``negatives``; twins are no rivals."""
    scores = first @ torch.cat([goal, negatives]).T / temperature
    own = torch.eye(len(goal), dtype=torch.bool)
    twin = (numbers[:, None] == numbers[None, :]) & ~own
    scores[:, : len(goal)] = scores[:, : len(goal)].masked_fill(twin, float("-inf"))
    return F.cross_entropy(scores, torch.arange(len(goal)))


def masked_words(
    student: Student, hidden: Tensor, words: Tensor, input_ids: Tensor, pieces: Tensor
) -> Tensor:
    """Cross-entropy over the batch's own pieces and a sample, instead of over all 54,500.

    A sampled piece stands for those that were not, so its logit is raised by the log of how many.
    """
    present = torch.unique(torch.cat([input_ids.flatten(), words]))
    sampled = pieces[~torch.isin(pieces, present)]
    candidates = torch.cat([present, sampled])
    logits = student.word_logits(hidden, candidates)
    if len(sampled):
        unseen = len(student.table) - len(present)
        logits[:, len(present) :] += torch.tensor(unseen / len(sampled)).log()
    return F.cross_entropy(logits, torch.searchsorted(present, words))
