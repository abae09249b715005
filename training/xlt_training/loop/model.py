"""Encoders and checkpoints: build a classifier on an encoder, save it, load it again.

A checkpoint is an ordinary transformers folder (safetensors, tokenizer) with one more file,
``xlt.json``, that says what it was trained for.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from xlt_serve.errors import DataError
from xlt_training.loop.architectures import longest
from xlt_training.loop.method import Method
from xlt_training.loop.network import Classifier
from xlt_training.loop.pretrained import check, load_begun, load_classifier, load_tokenizer, resolve
from xlt_training.methods import METHODS

DESCRIPTION = "xlt.json"
SLOTS = "slots.safetensors"


@dataclass(frozen=True)
class Description:
    """What a checkpoint is for; everything else stands in transformers' own files. ``fitted``: numbers
    for serving, by mode, which methods have found. ``trained_on``: rows, labels and files, for the
    bundle's card."""

    task: str
    pair: bool
    labels: list[str]
    source_language: str
    max_length: int
    config: dict[str, Any] = field(default_factory=dict)
    fitted: dict[str, dict[str, float]] = field(default_factory=dict)
    trained_on: dict[str, Any] = field(default_factory=dict)


def build(encoder: str, labels: list[str], max_length: int) -> Classifier:
    """A classifier with a fresh head on a pretrained encoder, in fp32."""
    place = resolve(encoder)
    check(place)
    names = dict(enumerate(labels))
    settings = {
        "num_labels": len(labels),
        "id2label": names,
        "label2id": {name: number for number, name in names.items()},
    }
    hf, fresh = load_begun(place, settings)
    made = Classifier(hf, load_tokenizer(place), min(max_length, longest(hf.config)))
    made.fresh = frozenset(name.removeprefix(f"{hf.base_model_prefix}.") for name in fresh)
    return made


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
    description = described(folder)
    check(str(folder))
    model = Classifier(
        load_classifier(str(folder), {}), load_tokenizer(folder), description.max_length
    )
    for method in methods_of(description):
        method.attach(model)
    if (folder / SLOTS).is_file():
        model.slots.load_state_dict(load_file(folder / SLOTS))
    model.eval()
    return model, description


def described(folder: Path) -> Description:
    """What a checkpoint is for."""
    file = folder / DESCRIPTION
    if not file.is_file():
        raise DataError(
            folder,
            f"is not a finished checkpoint: it has no {DESCRIPTION}",
            "give the --out folder of `xlt train`, after it has ended",
        )
    try:
        return Description(**json.loads(file.read_text(encoding="utf-8")))
    except (UnicodeDecodeError, json.JSONDecodeError, TypeError) as error:
        raise DataError(file, f"can't be read ({error})", "train again") from None


def methods_of(description: Description) -> list[Method]:
    """The methods that a checkpoint was trained with, in all its stages, settings and all."""
    out: dict[str, Method] = {}
    for stage in description.config.get("stages", []):
        for entry in stage["methods"]:
            settings = dict(entry)
            name = settings.pop("name")
            made = METHODS[name](**{**METHODS[name].first_edition, **settings})
            # What it added to the model was added in its first stage; what else it says, as of noise,
            # is what the model has learnt last.
            if name not in out or type(made).attach is Method.attach:
                out[name] = made
    return list(out.values())
