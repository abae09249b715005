"""The model that all peers get: XLM-R-base with random weights, as a transformers folder."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

SEED = 0
LABELS = 7
FIRST_PIECE = 4  # the pieces before it are <s>, <pad>, </s> and <unk>


def build() -> XLMRobertaForSequenceClassification:
    torch.manual_seed(SEED)
    config = XLMRobertaConfig(
        vocab_size=250_002,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        num_labels=LABELS,
    )
    model = XLMRobertaForSequenceClassification(config).eval()
    spread(model)
    centre(model)
    return model


@torch.inference_mode()
def spread(model: XLMRobertaForSequenceClassification) -> None:
    """Fresh biases are all 0 and fresh norms all 1: an exporter could leave them out."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter += torch.randn_like(parameter) * model.config.initializer_range


@torch.inference_mode()
def centre(model: XLMRobertaForSequenceClassification) -> None:
    """Random weights prefer one label whatever the text; without that preference every label
    occurs, and label agreement says something."""
    ids = torch.randint(FIRST_PIECE, model.config.vocab_size, (32, 64))
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    model.classifier.out_proj.bias -= logits.mean(dim=0)


def save(folder: Path) -> XLMRobertaForSequenceClassification:
    """The one in ``folder``, made where it is not there yet."""
    if (folder / "model.safetensors").is_file():
        return XLMRobertaForSequenceClassification.from_pretrained(folder).eval()
    model = build()
    model.save_pretrained(folder)
    return model
