"""Classifiers as people make them with transformers alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def save(encoder: Path, out: Path, labels: Sequence[str], **config: Any) -> Path:
    """A head with random weights of a trained one's size on an encoder, by ``save_pretrained``."""
    torch.manual_seed(0)
    names = dict(enumerate(labels))
    model = AutoModelForSequenceClassification.from_pretrained(
        encoder, id2label=names, label2id={name: n for n, name in names.items()}, **config
    )
    with torch.no_grad():
        for weight in model.classifier.parameters():
            weight.normal_(0, 0.5)
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(out)
    return out


def edit(file: Path, **values: Any) -> None:
    """Change a JSON file; a value of None takes its key out."""
    content = json.loads(file.read_text(encoding="utf-8")) | values
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
