"""Encoders as transformers gives them: by hub name, by folder, or by the name of one that ships."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging
from transformers.utils.hub import cached_file

from xlt_serve import bundle as bundles
from xlt_serve.errors import DataError, DependencyError, first_line
from xlt_training.loop import sentencepieces
from xlt_training.loop.architectures import HEADS

SHIPPED = bundles.MODELS / "encoders"
SMALL = "small"
SENTENCEPIECES = sentencepieces.FILES
MISFITS = (RuntimeError, ValueError, TypeError, AssertionError, AttributeError)
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", *SENTENCEPIECES)
"""A folder that has one of these has a tokenizer."""


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
        with _quiet():  # it takes every converted tokenizer for one of Mistral's
            tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise DataError(place, f"has no tokenizer ({first_line(error)})") from None
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise DataError(place, "has no tokenizer.json", "convert its tokenizer to a fast one")
    file = _sentencepiece_alone(place)
    return tokenizer if file is None else sentencepieces.mended(tokenizer, file)


def _sentencepiece_alone(place: str | Path) -> Path | None:
    """The SentencePiece model of a folder or hub name without a tokenizer.json."""
    for name in ("tokenizer.json", *SENTENCEPIECES):
        found = cached_file(
            str(place),
            name,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if found is not None:
            return None if name == "tokenizer.json" else Path(found)
    return None


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
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
    except (OSError, ValueError, TypeError, StrictDataclassError) as error:
        raise DataError(
            place,
            f"is neither a folder with an encoder nor a name the hub gives ({first_line(error)})",
            "check the path; without network, give a local folder or encoder = 'small'",
        ) from None
    if config.model_type not in HEADS:
        raise DataError(place, f"is a {config.model_type} model; supported: {', '.join(HEADS)}")


def load_classifier(place: str, settings: dict[str, Any]) -> PreTrainedModel:
    """Whatever the weights don't have begins at random: a fresh head."""
    return load_begun(place, settings)[0]


def load_finished(
    place: str, settings: dict[str, Any], brought: Collection[str] = ()
) -> PreTrainedModel:
    """A classifier all of whose weights are there, but for those that something else brings."""
    model, missing = load_begun(place, settings)
    if lost := sorted(set(missing) - set(brought)):
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise DataError(
            place,
            f"has no weights for {', '.join(lost[:3])}{more}",
            "give a fitted classifier; to fit one on this encoder: xlt train … encoder=…",
        )
    return model


def load_begun(place: str, settings: dict[str, Any]) -> tuple[PreTrainedModel, list[str]]:
    """The model, and the names of its weights that are not there: they begin at random."""
    try:
        with _quiet():
            model, info = AutoModelForSequenceClassification.from_pretrained(
                place,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
                **settings,
            )
    except OSError as error:
        raise DataError(
            place,
            f"has no safetensors weights ({first_line(error)})",
            "convert them: model.save_pretrained(folder) with a current transformers",
        ) from None
    except SafetensorError as error:
        raise DataError(
            place, f"its weights can't be read ({first_line(error)})", "fetch them again"
        ) from None
    except (*MISFITS, StrictDataclassError) as error:
        raise DataError(
            place,
            f"its weights don't fit its config ({first_line(error)})",
            "mend config.json: num_labels, id2label and sizes are those of the weights",
        ) from None
    return model, list(info["missing_keys"])


@contextmanager
def _quiet() -> Iterator[None]:
    """A fresh head is what we want, not news."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
