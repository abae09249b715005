"""What differs between encoder families: how the head reads the encoder's output, and its layers.

No other module asks for a model's type. Sizes come from optimum's normalised configs, which know that
DistilBERT calls its width ``dim``, and of families that it does not know from the config itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from optimum.utils import NormalizedConfigManager, NormalizedTextConfig
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import PreTrainedConfig, PreTrainedModel

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


def _albert(hf: Any, last: Tensor, mask: Tensor) -> Tensor:
    base = hf.base_model
    return cast(Tensor, hf.classifier(hf.dropout(base.pooler_activation(base.pooler(last[:, 0])))))


def _modernbert(hf: Any, last: Tensor, mask: Tensor) -> Tensor:
    pooled = last[:, 0] if hf.config.classifier_pooling == "cls" else _mean(last, mask)
    return cast(Tensor, hf.classifier(hf.drop(hf.head(pooled))))


def _eurobert(hf: Any, last: Tensor, mask: Tensor) -> Tensor:
    if hf.classifier_pooling == "late":
        return _mean(hf.classifier(hf.activation(hf.dense(last))), mask)
    pooled = last[:, 0] if hf.classifier_pooling == "bos" else _mean(last, mask)
    return cast(Tensor, hf.classifier(hf.activation(hf.dense(pooled))))


def _decoder(hf: Any, last: Tensor, mask: Tensor) -> Tensor:
    """The last token has read all before it; padding stands behind it."""
    rows = torch.arange(last.shape[0], device=last.device)
    return cast(Tensor, hf.score(last[rows, mask.sum(dim=1) - 1]))


def _mean(states: Tensor, mask: Tensor) -> Tensor:
    """Over the real tokens."""
    return (states * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)


# Last hidden states and attention mask to logits, as transformers' own forward does it.
HEADS: dict[str, Head] = {
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "distilbert": _distilbert,
    "deberta-v2": _deberta,
    "modernbert": _modernbert,
    "electra": _roberta,
    "albert": _albert,
    "mpnet": _roberta,
    "eurobert": _eurobert,
    "jina_embeddings_v3": _roberta,
    "gte": _bert,
    "gemma3_text": _decoder,
    "qwen3": _decoder,
}
DECODERS = ("gemma3_text", "qwen3")
# They turn queries and keys by their positions.
ROTARY = ("modernbert", "eurobert", "jina_embeddings_v3", "gte", *DECODERS)
# Their position tables begin behind the padding token's number.
SHIFTED = ("roberta", "xlm-roberta", "mpnet")
# Those whose layers take and give hidden states in the same way, so that methods may work inside.
OPEN_LAYERS = ("bert", "roberta", "xlm-roberta")


def width(hf: PreTrainedModel) -> int:
    return int(_sizes(hf).hidden_size)


def depth(hf: PreTrainedModel) -> int:
    return int(_sizes(hf).num_layers)


def longest(config: PreTrainedConfig) -> int:
    """Tokens that the position table has room for."""
    positions = int(config.max_position_embeddings)
    return positions - 2 if config.model_type in SHIFTED else positions


def embeddings(hf: PreTrainedModel) -> nn.Module:
    """The module that gives E(x): words, positions, types and norm, or words alone."""
    base: Any = hf.base_model
    return cast(nn.Module, base.embeddings if hasattr(base, "embeddings") else base.embed_tokens)


def embedded_width(hf: PreTrainedModel) -> int:
    """Of E(x), which ALBERT and ELECTRA widen behind it."""
    return int(getattr(hf.config, "embedding_size", None) or width(hf))


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
    """Of a model's inputs those that its embeddings module reads (DeBERTa's also reads the mask, a
    table of words calls its ids ``input``)."""
    known = inspect.signature(embeddings.forward).parameters
    named = inputs | {"mask": inputs["attention_mask"]}
    if "input_ids" in inputs:
        named |= {"input": inputs["input_ids"]}
    return {name: value for name, value in named.items() if name in known}


def encoder_inputs(hf: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Rotary encoders get their positions as an input of the batch's size: onnxruntime's operator
    does not broadcast the single row that transformers would make. Decoders keep nothing for a next
    token."""
    out: dict[str, Any] = dict(inputs)
    if hf.config.model_type in ROTARY:
        mask = inputs["attention_mask"]
        positions = torch.arange(mask.shape[1], device=mask.device).unsqueeze(0).expand_as(mask)
        out["position_ids"] = positions
    if hf.config.model_type in DECODERS:
        out["use_cache"] = False
    return out


def _sizes(hf: PreTrainedModel) -> Any:
    known = NormalizedConfigManager._conf
    kind = known.get(hf.config.model_type, NormalizedTextConfig)
    return kind(hf.config)
