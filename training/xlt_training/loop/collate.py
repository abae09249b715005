"""Examples to padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from xlt_serve.errors import DataError
from xlt_training.loop.types import Batch, Example


@dataclass
class Encoding:
    """How examples become ids: cut to ``max_length``, the longer side of a pair first."""

    tokenizer: PreTrainedTokenizerFast
    labels: list[str]
    max_length: int
    type_ids: bool

    def __post_init__(self) -> None:
        # As serving pads, and as heads that read the last real token count.
        self.tokenizer.padding_side = "right"

    def check(self, examples: Sequence[Example]) -> None:
        if unknown := sorted({example.label for example in examples} - set(self.labels)):
            raise DataError(
                f"labels {', '.join(unknown[:5])}",
                f"are not among those trained on: {', '.join(self.labels)}",
                "check the label column",
            )

    def batch(self, examples: Sequence[Example], words: bool = False) -> Batch:
        """Tensors of the examples, padded to the longest; ``words`` asks for the words' numbers."""
        sides = list(zip(*(example.texts() for example in examples), strict=True))
        encoded = self.tokenizer(
            *(list(side) for side in sides),
            truncation="longest_first",
            max_length=self.max_length,
            padding=True,
            return_token_type_ids=self.type_ids,
            return_tensors="pt",
        )
        number = {name: index for index, name in enumerate(self.labels)}
        return Batch(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            token_type_ids=encoded["token_type_ids"] if self.type_ids else None,
            labels=torch.tensor([number.get(example.label, -100) for example in examples]),
            words=torch.tensor(
                [
                    word_numbers(example, encoded.encodings[row])
                    for row, example in enumerate(examples)
                ]
            )
            if words
            else None,
            examples=list(examples),
        )


def word_numbers(example: Example, encoding: Any) -> list[int]:
    """The whitespace-separated word that each token stands in, by its offsets; -1 for special ones.

    Space belongs to the word behind it (as in "▁word"), at the end of a text to the last word.
    """
    numbers, before = [], 0
    for text in example.texts():
        words = len(text.split())
        following, mine = words, []
        inside = False
        for character in reversed(text):
            if not character.isspace() and not inside:
                following -= 1
            inside = not character.isspace()
            mine.append(before + min(following, words - 1))
        numbers.append(mine[::-1])
        before += words
    out = []
    for (start, end), side in zip(encoding.offsets, encoding.sequence_ids, strict=True):
        if side is None or not numbers[side] or not example.texts()[side].strip():
            out.append(-1)
        else:
            # A piece may begin with the space before its word: its last character decides.
            out.append(numbers[side][max(start, end - 1)])
    return out
