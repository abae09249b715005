"""Encoders and checkpoints: build a classifier on an encoder, save it, load it again.

A checkpoint is an ordinary transformers folder (safetensors, tokenizer) with one more file,
``xlt.json``, that says what it was trained for.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from training.method import Method
from training.methods import METHODS
from training.network import Classifier, longest
from xlt_serve.errors import DataError

SHIPPED = Path(__file__).parent / "encoders"
ARCHITECTURES = ("bert", "xlm-roberta", "roberta")
DESCRIPTION = "xlt.json"
SLOTS = "slots.safetensors"


@dataclass(frozen=True)
class Description:
    """What a checkpoint is for; everything else stands in transformers' own files."""

    task: str
    pair: bool
    labels: list[str]
    source_language: str
    max_length: int
    config: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)


def resolve(encoder: str) -> str:
    """The folder of a shipped encoder's name, else the name as it is (folder or hub)."""
    shipped = SHIPPED / encoder
    return str(shipped) if (shipped / "config.json").is_file() else encoder


def build(encoder: str, labels: list[str], max_length: int) -> Classifier:
    """A classifier with a fresh head on a pretrained encoder, in fp32."""
    place = resolve(encoder)
    _check(place)
    names = dict(enumerate(labels))
    settings = {
        "num_labels": len(labels),
        "id2label": names,
        "label2id": {name: number for number, name in names.items()},
    }
    hf = _load(place, settings)
    return Classifier(hf, load_tokenizer(place), min(max_length, longest(hf)))


def load_tokenizer(place: str | Path) -> PreTrainedTokenizerFast:
    try:
        tokenizer = AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise DataError(place, f"has no tokenizer ({_first_line(error)})") from None
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(place, "has no tokenizer.json", "convert its tokenizer to a fast one")
    return tokenizer


def save(folder: Path, model: Classifier, description: Description) -> None:
    """transformers' own files, and beside them what methods added."""
    model.hf.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    if extra := model.slots.state_dict():
        save_file({name: value.contiguous() for name, value in extra.items()}, folder / SLOTS)
    text = json.dumps(asdict(description), indent=2, ensure_ascii=False)
    (folder / DESCRIPTION).write_text(text + "\n", encoding="utf-8")


def load(folder: Path) -> tuple[Classifier, Description]:
    """A checkpoint that ``xlt train`` wrote, with what its methods added, in eval mode."""
    file = folder / DESCRIPTION
    if not file.is_file():
        raise DataError(
            folder,
            f"is not a finished checkpoint: it has no {DESCRIPTION}",
            "give the --out folder of `xlt train`, after it has ended",
        )
    try:
        description = Description(**json.loads(file.read_text(encoding="utf-8")))
    except (UnicodeDecodeError, json.JSONDecodeError, TypeError) as error:
        raise DataError(file, f"can't be read ({error})", "train again") from None
    _check(str(folder))
    model = Classifier(_load(str(folder), {}), load_tokenizer(folder), description.max_length)
    for method in methods_of(description):
        method.attach(model)
    if (folder / SLOTS).is_file():
        model.slots.load_state_dict(load_file(folder / SLOTS))
    model.eval()
    return model, description


def methods_of(description: Description) -> list[Method]:
    """The methods that a checkpoint was trained with, settings and all."""
    out = []
    for entry in description.config.get("methods", []):
        settings = dict(entry)
        out.append(METHODS[settings.pop("name")](**settings))
    return out


def _check(place: str) -> None:
    try:
        config = AutoConfig.from_pretrained(place)
    except (OSError, ValueError) as error:
        raise DataError(
            place,
            f"is neither a folder with an encoder nor a name the hub gives ({_first_line(error)})",
            "check the path; without network, give a local folder or encoder = 'small'",
        ) from None
    if config.model_type not in ARCHITECTURES:
        raise DataError(
            place, f"is a {config.model_type} model; supported: {', '.join(ARCHITECTURES)}"
        )


def _load(place: str, settings: dict[str, Any]) -> PreTrainedModel:
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # a fresh head is what we want, not news
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        return AutoModelForSequenceClassification.from_pretrained(
            place, use_safetensors=True, dtype=torch.float32, **settings
        )
    except OSError as error:
        raise DataError(
            place,
            f"has no safetensors weights ({_first_line(error)})",
            "convert them: model.save_pretrained(folder) with a current transformers",
        ) from None
    finally:
        logging.set_verbosity(before)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
