"""Examples to padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from training.types import Batch, Example
from xlt_serve.errors import DataError


def encode(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    labels: Sequence[str],
    max_length: int,
    type_ids: bool,
) -> list[dict[str, Any]]:
    """One dict of ids for each example, cut to ``max_length`` (the longer side of a pair first)."""
    number = {name: index for index, name in enumerate(labels)}
    if unknown := sorted({example.label for example in examples} - set(number)):
        raise DataError(
            f"labels {', '.join(unknown[:5])}",
            f"are not among those trained on: {', '.join(labels)}",
            "check the label column",
        )
    pairs = None if examples and examples[0].pair is None else [e.pair or "" for e in examples]
    encoded = tokenizer(
        [example.text for example in examples],
        pairs,
        truncation="longest_first",
        max_length=max_length,
        return_token_type_ids=type_ids,
    )
    names = ["input_ids", *(["token_type_ids"] if type_ids else [])]
    return [
        {**{name: encoded[name][i] for name in names}, "labels": number[example.label]}
        for i, example in enumerate(examples)
    ]


@dataclass
class Collator:
    """Rows of ids → padded tensors by name, as transformers' Trainer hands them on."""

    pad_id: int

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in rows)
        ids = torch.full((len(rows), width), self.pad_id)
        out = {"input_ids": ids, "attention_mask": torch.zeros_like(ids)}
        if "token_type_ids" in rows[0]:
            out["token_type_ids"] = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            length = len(row["input_ids"])
            out["attention_mask"][number, :length] = 1
            for name in ("input_ids", "token_type_ids"):
                if name in row:
                    out[name][number, :length] = torch.tensor(row[name])
        return out | {"labels": torch.tensor([row["labels"] for row in rows])}


def to_batch(tensors: dict[str, torch.Tensor]) -> Batch:
    return Batch(**tensors)
