"""Encoders as transformers gives them: by hub name, by folder, or by the name of one that ships."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from xlt_serve import bundle as bundles
from xlt_serve.errors import DataError, DependencyError, first_line
from xlt_training.loop.architectures import HEADS

SHIPPED = bundles.MODELS / "encoders"
SMALL = "small"


def resolve(encoder: str) -> str:
    """The folder of a shipped encoder's name, else the name as it is (folder or hub)."""
    shipped = SHIPPED / encoder
    if (shipped / "config.json").is_file():
        return str(shipped)
    if encoder == SMALL and not Path(encoder).is_dir():
        raise DependencyError(encoder, "ships with xlt-serve-models", bundles.INSTALL)
    return encoder


def load_tokenizer(place: str | Path) -> PreTrainedTokenizerFast:
    try:
        tokenizer = AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise DataError(place, f"has no tokenizer ({first_line(error)})") from None
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise DataError(place, "has no tokenizer.json", "convert its tokenizer to a fast one")
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """With the class name that transformers 4 knows too, which optimum still needs; without the
    indentation that makes up half of a large vocabulary's file."""
    tokenizer.save_pretrained(folder)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    file = folder / "tokenizer_config.json"
    described = json.loads(file.read_text(encoding="utf-8"))
    described["tokenizer_class"] = "PreTrainedTokenizerFast"
    file.write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def check(place: str) -> None:
    try:
        config = AutoConfig.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise DataError(
            place,
            f"is neither a folder with an encoder nor a name the hub gives ({first_line(error)})",
            "check the path; without network, give a local folder or encoder = 'small'",
        ) from None
    if config.model_type not in HEADS:
        raise DataError(place, f"is a {config.model_type} model; supported: {', '.join(HEADS)}")


def load_classifier(place: str, settings: dict[str, Any]) -> PreTrainedModel:
    return classifier_and_fresh(place, settings)[0]


def classifier_and_fresh(
    place: str, settings: dict[str, Any]
) -> tuple[PreTrainedModel, frozenset[str]]:
    """The model, and which parameters its files do not have: they begin at random."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # a fresh head is what we want, not news
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        model, told = AutoModelForSequenceClassification.from_pretrained(
            place, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **settings
        )
        return model, frozenset(told["missing_keys"])
    except OSError as error:
        raise DataError(
            place,
            f"has no safetensors weights ({first_line(error)})",
            "convert them: model.save_pretrained(folder) with a current transformers",
        ) from None
    finally:
        logging.set_verbosity(before)
