"""How good is a model, language by language."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from training.collate import Collator, encode
from training.data import languages, load_split
from training.model import reads_type_ids
from training.types import Example
from xlt_serve.batching import plan
from xlt_serve.errors import DataError

Predict = Callable[[Sequence[Example]], list[str | None]]


@dataclass(frozen=True)
class Score:
    """Share of right labels among ``count`` examples; ``majority`` is what the commonest gets."""

    accuracy: float
    count: int
    majority: float


@torch.inference_mode()
def logits(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Sequence[Example],
    max_length: int,
    budget: int = 8192,
) -> np.ndarray:
    """[examples, labels] of a torch model in eval mode."""
    labels = [model.config.id2label[i] for i in range(model.config.num_labels)]
    # The label plays no part here: unlabelled examples get any.
    blank = [Example(e.text, labels[0], e.language, e.pair) for e in examples]
    rows = encode(blank, tokenizer, labels, max_length, reads_type_ids(model))
    collate = Collator(tokenizer.pad_token_id)
    was_training = model.training
    model.eval()
    out = np.zeros((len(rows), len(labels)), dtype=np.float32)
    for batch in plan([len(row["input_ids"]) for row in rows], budget):
        inputs = collate([rows[i] for i in batch])
        inputs.pop("labels")
        inputs = {name: value.to(model.device) for name, value in inputs.items()}
        out[batch] = model(**inputs).logits.float().cpu().numpy()
    model.train(was_training)
    return out


def torch_predictor(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, max_length: int
) -> Predict:
    def predict(examples: Sequence[Example]) -> list[str | None]:
        best = logits(model, tokenizer, examples, max_length).argmax(axis=1)
        return [model.config.id2label[int(i)] for i in best]

    return predict


def bundle_predictor(bundle: Path) -> Predict:
    from xlt_serve import load

    classifier = load(bundle)

    def predict(examples: Sequence[Example]) -> list[str | None]:
        items = [e.text if e.pair is None else (e.text, e.pair) for e in examples]
        return [p.label for p in classifier.predict(items, language=examples[0].language)]

    return predict


def score(predicted: Sequence[str | None], truth: Sequence[str]) -> Score:
    right = sum(p == t for p, t in zip(predicted, truth, strict=True))
    commonest = max(truth.count(label) for label in set(truth))
    return Score(right / len(truth), len(truth), commonest / len(truth))


def by_language(
    predict: Predict,
    task: str,
    data: str,
    split: str,
    chosen: Sequence[str] = (),
    progress: bool = False,
) -> dict[str, Score]:
    """The score on a split in each language, all that it has unless some are ``chosen``."""
    there = languages(task, data, split)
    if not there:
        raise DataError(data, f"has no {split} files of {task}", "check the data folder")
    out = {}
    for language in tqdm(list(chosen) or there, disable=not progress, desc="evaluating"):
        examples = load_split(task, data, split, language)
        out[language] = score(predict(examples), [example.label for example in examples])
    return out


def summary(scores: dict[str, Score], source: str) -> dict[str, float]:
    """Means over all languages and over all but the source, and the transfer gap between them."""
    all_values = [s.accuracy for s in scores.values()]
    targets = [s.accuracy for language, s in scores.items() if language != source]
    out = {"all": float(np.mean(all_values))}
    if targets:
        out["target"] = float(np.mean(targets))
        if source in scores:
            out["gap"] = scores[source].accuracy - out["target"]
    return out


def table(scores: dict[str, Score], source: str) -> str:
    """For a terminal: a line for each language, then the means."""
    lines = ["language  accuracy  majority  examples"]
    lines += [
        f"{language:8}  {s.accuracy:8.3f}  {s.majority:8.3f}  {s.count:8d}"
        for language, s in scores.items()
    ]
    means = "  ".join(f"{name} {value:.3f}" for name, value in summary(scores, source).items())
    return "\n".join([*lines, f"mean: {means}"])
