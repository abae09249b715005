"""Batches for distillation: texts of like length together, up to a number of padded tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from xlt_training.encoders.examples import TextExample
from xlt_training.encoders.student import IGNORED, TASKS


@dataclass
class DistillBatch:
    """input_ids, attention_mask, words: [batch, length]; aims and each of labels: [batch]."""

    input_ids: Tensor
    attention_mask: Tensor
    words: Tensor
    aims: Tensor
    labels: dict[str, Tensor]


def make(
    drawn: Sequence[TextExample],
    tokenizer: PreTrainedTokenizerFast,
    settings: dict[str, Any],
    block: int,
) -> list[DistillBatch]:
    """The batches of a block, in random order: a pure function of the arguments."""
    encoded = encode(drawn, tokenizer, settings["longest"])
    generator = random.Random(f"{settings['seed']}/{block}/order")
    order = sorted(range(len(drawn)), key=lambda i: len(encoded[i]) + generator.random())
    groups: list[list[int]] = []
    for i in order:
        if groups and (len(groups[-1]) + 1) * len(encoded[i]) <= settings["tokens"]:
            groups[-1].append(i)
        else:
            groups.append([i])
    generator.shuffle(groups)
    noise = np.random.default_rng((settings["seed"], block))
    return [
        collate([(encoded[i], drawn[i]) for i in group], tokenizer, settings["mask"], noise)
        for group in groups
    ]


def encode(
    drawn: Sequence[TextExample], tokenizer: PreTrainedTokenizerFast, longest: int
) -> list[list[int]]:
    """The pieces of each text, or of each pair."""
    out: list[list[int]] = [[]] * len(drawn)
    single = [i for i, example in enumerate(drawn) if not example.second]
    both = [i for i, example in enumerate(drawn) if example.second]
    if single:
        texts = [drawn[i].text for i in single]
        ids = tokenizer(texts, truncation=True, max_length=longest)["input_ids"]
        for i, row in zip(single, ids, strict=True):
            out[i] = row
    if both:
        first, second = [drawn[i].text for i in both], [drawn[i].second for i in both]
        ids = tokenizer(first, second, truncation=True, max_length=longest)["input_ids"]
        for i, row in zip(both, ids, strict=True):
            out[i] = row
    return out


def collate(
    rows: list[tuple[list[int], TextExample]],
    tokenizer: PreTrainedTokenizerFast,
    mask: float,
    noise: np.random.Generator,
) -> DistillBatch:
    width = max(len(ids) for ids, _ in rows)
    input_ids = np.full((len(rows), width), tokenizer.pad_token_id, dtype=np.int64)
    words = np.full_like(input_ids, IGNORED)
    for row, (ids, example) in enumerate(rows):
        input_ids[row, : len(ids)] = ids
        if example.masked:
            hide(input_ids[row, : len(ids)], words[row, : len(ids)], tokenizer, mask, noise)
    tensor = torch.from_numpy(input_ids)
    return DistillBatch(
        input_ids=tensor,
        attention_mask=(tensor != tokenizer.pad_token_id).long(),
        words=torch.from_numpy(words),
        aims=torch.tensor([example.target for _, example in rows]),
        labels={
            task: torch.tensor([e.label if e.task == task else IGNORED for _, e in rows])
            for task in TASKS
        },
    )


def hide(
    ids: np.ndarray,
    words: np.ndarray,
    tokenizer: PreTrainedTokenizerFast,
    share: float,
    noise: np.random.Generator,
) -> None:
    """BERT's masking, in place: of ``share`` of the pieces 80 % masked, 10 % random, 10 % kept."""
    chosen = (noise.random(len(ids)) < share) & (ids > 3)
    words[chosen] = ids[chosen]
    kind = noise.random(len(ids))
    replaced = noise.integers(4, len(tokenizer) - 1, size=len(ids))
    ids[chosen & (kind < 0.8)] = tokenizer.mask_token_id
    other = chosen & (kind >= 0.8) & (kind < 0.9)
    ids[other] = replaced[other]
