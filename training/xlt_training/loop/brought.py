"""A classifier as transformers saves it: what it is for is read from its own config.

Beside the weights of the whole classifier, in a folder or on the hub, a LoRA adapter and its base model
will do. No code that comes with a model is run, and no pickle is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from xlt_serve.errors import DataError, first_line
from xlt_serve.manifest import LONGEST_INPUT
from xlt_serve.modes.zero_shot import yes_and_no
from xlt_training.loop import lora, pretrained
from xlt_training.loop.architectures import HEADS, longest
from xlt_training.loop.model import Description
from xlt_training.loop.network import Classifier

CONFIG = "config.json"
FINISHED = "ForSequenceClassification"
FETCHED = ["*.json", "*.safetensors", "*.txt", *pretrained.SENTENCEPIECES]
PAIR_TASKS = frozenset({"mnli", "mrpc", "paws-x", "qnli", "qqp", "rte", "snli", "wnli", "xnli"})
"""What older transformers note in a config as the task of GLUE or XTREME that a model was fitted on."""

NO_PADDING = (
    "its tokenizer has no padding token, so texts can't share a batch",
    "set pad_token in tokenizer_config.json (for a decoder mostly its end token) and pad_token_id in"
    " config.json",
)
ENTAILMENT, PLAIN = "entailment", "classification"


def load(place: str, source: str, pairs: bool = False) -> tuple[Classifier, Description]:
    """The classifier in eval mode, and what it is for. ``source``: the language it was fitted on;
    ``pairs``: it reads two texts, which a config need not say."""
    folder = folder_of(place)
    adapter = lora.read(folder) if (folder / lora.CONFIG).is_file() else None
    weights = folder if adapter is None else base_of(folder, adapter)
    config = read_config(weights)
    if adapter is None:
        refuse_unfinished(weights, config)
    else:
        config = with_labels(folder, config, adapter)
    labels = labels_of(weights, config)
    settings = {"id2label": dict(enumerate(labels)), "label2id": _numbers(labels)}
    pretrained.check(str(weights))
    tokenizer_there = any((folder / name).is_file() for name in pretrained.TOKENIZERS)
    tokenizer = pretrained.load_tokenizer(folder if tokenizer_there else weights)
    brought = () if adapter is None else adapter.whole
    hf = pretrained.load_finished(str(weights), settings, brought)
    if adapter is not None:
        lora.merge(hf, adapter)
    refuse_tokenizer(folder, hf, tokenizer)
    described = description(place, config, labels, source, pairs, room(hf.config, tokenizer))
    model = Classifier(hf, tokenizer, described.max_length)
    # A tokenizer that does not name them gave none in training either: the model saw zeros.
    model.encoding.type_ids &= "token_type_ids" in tokenizer.model_input_names
    return model.eval(), described


def folder_of(place: str) -> Path:
    """A folder as it is; a name of the hub's as the folder that it is fetched to."""
    folder = Path(pretrained.resolve(place))
    if folder.is_dir():
        if (folder / CONFIG).is_file() or (folder / lora.CONFIG).is_file():
            return folder
        raise DataError(
            place,
            f"is not a finished checkpoint: it has neither xlt.json nor {CONFIG}",
            "give the --out folder of `xlt train`, after it has ended, or that of save_pretrained",
        )
    try:
        return Path(snapshot_download(place, allow_patterns=FETCHED, ignore_patterns=["*/*"]))
    except (OSError, ValueError) as error:
        raise DataError(
            place,
            "is not a finished checkpoint: there is no such folder, and no such name that the hub"
            f" gives ({first_line(error)})",
            "check the path; without network give a folder",
        ) from None


def base_of(folder: Path, adapter: lora.Adapter) -> Path:
    beside = folder / adapter.base
    try:
        return folder_of(str(beside) if beside.is_dir() else adapter.base)
    except DataError as error:
        raise DataError(
            f"{folder / lora.CONFIG}: base_model_name_or_path {adapter.base}",
            error.rule,
            "name the folder of the base model there",
        ) from None


def read_config(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            file, f"can't be read ({first_line(error)})", "save the model again"
        ) from None
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in HEADS:
        raise DataError(
            f"{file}: model_type {kind}",
            f"is no architecture that is known here: {', '.join(HEADS)}",
            "give one of these; CONTRIBUTING.md says how to add one",
        )
    return dict(config)


def refuse_unfinished(folder: Path, config: Mapping[str, Any]) -> None:
    """Where the config says that its model is no classifier of whole texts."""
    named = config.get("architectures") or []
    if named and not any(str(name).endswith(FINISHED) for name in named):
        raise DataError(
            f"{folder / CONFIG}: architectures {', '.join(map(str, named))}",
            f"is no classifier of texts (…{FINISHED})",
            "fit one on it: xlt train … encoder=FOLDER",
        )


def with_labels(folder: Path, config: dict[str, Any], adapter: lora.Adapter) -> dict[str, Any]:
    """The base's config with the adapter's labels: of a config.json beside the adapter, if there is one."""
    if (folder / CONFIG).is_file():
        config = config | {
            key: value
            for key, value in read_config(folder).items()
            if key in ("id2label", "label2id", "num_labels", "problem_type", "finetuning_task")
        }
    count = adapter.labels
    if count is None or count == len(config.get("id2label") or "ab"):
        return config
    if (folder / CONFIG).is_file() and "id2label" in read_config(folder):
        raise DataError(
            f"{folder / CONFIG}: {len(config['id2label'])} labels",
            f"the adapter's head has {count}",
            "name them all in id2label",
        )
    return {k: v for k, v in config.items() if k not in ("id2label", "label2id")} | {
        "num_labels": count
    }


def labels_of(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """The labels by their numbers; whatever contradicts itself is refused, as are models that don't
    choose one label of several."""
    file = folder / CONFIG
    count, names = config.get("num_labels"), config.get("id2label")
    if names is None:
        names = {number: f"LABEL_{number}" for number in range(2 if count is None else count)}
    try:
        numbered = {int(number): str(name) for number, name in names.items()}
    except (AttributeError, TypeError, ValueError):
        raise DataError(f"{file}: id2label", "must give number → name", "mend it") from None
    labels = [numbered[number] for number in sorted(numbered)]
    if sorted(numbered) != list(range(len(labels))) or count not in (None, len(labels)):
        told = "" if count is None else f", num_labels is {count}"
        raise DataError(
            f"{file}: id2label",
            f"must number the labels from 0 on, was: {', '.join(map(str, sorted(numbered)))}{told}",
            "name every output of the model once",
        )
    if twice := [name for name in labels if labels.count(name) > 1 or not name.strip()]:
        raise DataError(
            f"{file}: label {twice[0]!r}", "must be a name of one output alone", "mend id2label"
        )
    given = config.get("label2id") or {}
    if clash := [
        name for name, number in _numbers(labels).items() if given.get(name, number) != number
    ]:
        raise DataError(
            f"{file}: label {clash[0]!r}",
            f"is {labels.index(clash[0])} in id2label and {given[clash[0]]} in label2id",
            "mend the wrong one",
        )
    refuse_problem(file, config.get("problem_type"), labels)
    return labels


def refuse_problem(file: Path, kind: str | None, labels: Sequence[str]) -> None:
    if kind == "multi_label_classification":
        raise DataError(
            f"{file}: problem_type {kind}",
            "bundles give each text one of the labels",
            "serve it otherwise, or fit it with problem_type single_label_classification",
        )
    if kind not in (None, "single_label_classification") or len(labels) < 2:
        raise DataError(
            f"{file}: problem_type {kind}, {len(labels)} outputs",
            "is a regression: bundles give probabilities of two labels or more",
            "fit it with a label for each answer",
        )


def refuse_tokenizer(folder: Path, hf: Any, tokenizer: Any) -> None:
    if tokenizer.pad_token_id is None:
        raise DataError(folder, *NO_PADDING)
    rows = hf.get_input_embeddings().weight.shape[0]
    largest = max(tokenizer.get_vocab().values())
    if largest >= rows:
        raise DataError(
            folder,
            f"its tokenizer numbers pieces up to {largest}, its embedding has {rows} rows",
            "put the tokenizer there that belongs to the model",
        )


def room(config: Any, tokenizer: Any) -> int:
    """Tokens that a text may have: as the position table and the tokenizer say."""
    return int(min(longest(config), tokenizer.model_max_length, LONGEST_INPUT))


def description(
    place: str,
    config: Mapping[str, Any],
    labels: Sequence[str],
    source: str,
    pairs: bool,
    max_length: int,
) -> Description:
    entails = yes_and_no(labels) is not None
    cross_encoder = "sentence_transformers" in config
    return Description(
        task=ENTAILMENT if entails else PLAIN,
        pair=pairs or entails or cross_encoder or config.get("finetuning_task") in PAIR_TASKS,
        labels=list(labels),
        source_language=source,
        max_length=max_length,
        config={"encoder": Path(place).name if Path(place).exists() else place},
    )


def _numbers(labels: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(labels)}
