"""What differs between encoder families: how the head reads the encoder's output, and its layers.

Sizes come from optimum's normalised configs, which know that DistilBERT calls its width ``dim``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from optimum.utils import NormalizedConfigManager
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import PreTrainedModel

from xlt_serve.errors import UsageError

Head = Callable[[Any, Tensor, Tensor], Tensor]
Mask = Tensor | BlockMask | None
"""As transformers makes it for the attention that a model uses."""


class SelfAttention(Protocol):
    """The projections to queries, keys and values."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    dropout: nn.Dropout
    attention_head_size: int


class Projection(Protocol):
    """What stands behind the attention, and behind the feed-forward layer: up to the residual."""

    dense: nn.Linear
    dropout: nn.Dropout
    LayerNorm: nn.LayerNorm


class Attention(Protocol):
    self: SelfAttention
    output: Projection

    def __call__(self, states: Tensor, mask: Mask) -> tuple[Tensor, ...]: ...


class EncoderLayer(Protocol):
    """A layer of BERT's kind, as methods that work inside it see it."""

    attention: Attention
    output: Projection

    def __call__(self, states: Tensor, mask: Mask) -> Tensor: ...

    def requires_grad_(self, wanted: bool) -> object: ...

    def feed_forward_chunk(self, states: Tensor) -> Tensor: ...


def _bert(hf: Any, last: Tensor, mask: Tensor) -> Tensor:
    return cast(Tensor, hf.classifier(hf.dropout(hf.base_model.pooler(last))))


def _roberta(hf: Any, last: Tensor, mask: Tensor) -> Tensor:
    return cast(Tensor, hf.classifier(last))


def _distilbert(hf: Any, last: Tensor, mask: Tensor) -> Tensor:
    hidden = nn.functional.relu(hf.pre_classifier(last[:, 0]))
    return cast(Tensor, hf.classifier(hf.dropout(hidden)))


def _deberta(hf: Any, last: Tensor, mask: Tensor) -> Tensor:
    return cast(Tensor, hf.classifier(hf.dropout(hf.pooler(last))))


def _modernbert(hf: Any, last: Tensor, mask: Tensor) -> Tensor:
    if hf.config.classifier_pooling == "cls":
        pooled = last[:, 0]
    else:
        pooled = (last * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    return cast(Tensor, hf.classifier(hf.drop(hf.head(pooled))))


# Last hidden states and attention mask to logits, as transformers' own forward does it.
HEADS: dict[str, Head] = {
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "distilbert": _distilbert,
    "deberta-v2": _deberta,
    "modernbert": _modernbert,
}
# Those whose layers take and give hidden states in the same way, so that methods may work inside.
OPEN_LAYERS = ("bert", "roberta", "xlm-roberta")


def width(hf: PreTrainedModel) -> int:
    return int(_sizes(hf).hidden_size)


def depth(hf: PreTrainedModel) -> int:
    return int(_sizes(hf).num_layers)


def layers(hf: PreTrainedModel, who: str) -> Sequence[EncoderLayer]:
    """The encoder's layers for a method that works inside them."""
    kind = hf.config.model_type
    if kind not in OPEN_LAYERS:
        raise UsageError(
            who,
            f"works inside the layers of {', '.join(OPEN_LAYERS)}; this encoder is {kind}",
            "choose such an encoder, or another method",
        )
    encoder: Any = hf.base_model.encoder
    return cast(Sequence[EncoderLayer], encoder.layer)


def embedding_inputs(embeddings: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a model's inputs those that its embeddings module reads (DeBERTa's also reads the mask)."""
    known = inspect.signature(embeddings.forward).parameters
    named = inputs | ({"mask": inputs["attention_mask"]} if "mask" in known else {})
    return {name: value for name, value in named.items() if name in known}


def with_positions(hf: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rotary encoders get their positions as an input of the batch's size: onnxruntime's operator
    does not broadcast the single row that transformers would make."""
    if hf.config.model_type != "modernbert":
        return inputs
    mask = inputs["attention_mask"]
    positions = torch.arange(mask.shape[1], device=mask.device).unsqueeze(0).expand_as(mask)
    return inputs | {"position_ids": positions}


def _sizes(hf: PreTrainedModel) -> Any:
    return NormalizedConfigManager.get_normalized_config_class(hf.config.model_type)(hf.config)
