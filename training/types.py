"""The values that the stages of training hand to each other."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text, or pair of texts. ``id`` is shared by translations of one example."""

    text: str
    label: str
    language: str
    pair: str | None = None
    id: str = ""


@dataclass
class Batch:
    """input_ids, attention_mask, token_type_ids: [batch, length]; labels: [batch]."""

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    token_type_ids: Tensor | None = None

    def inputs(self) -> dict[str, Tensor]:
        """What a transformers model takes."""
        given = {"input_ids": self.input_ids, "attention_mask": self.attention_mask}
        return (
            given
            if self.token_type_ids is None
            else given | {"token_type_ids": self.token_type_ids}
        )


@dataclass
class Loss:
    """``total`` is what backward runs on; ``terms`` are its parts by name, for the log."""

    total: Tensor
    terms: dict[str, Tensor] = field(default_factory=dict)
