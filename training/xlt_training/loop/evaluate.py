"""How good is a model, language by language."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from xlt_serve.calibration import softmax
from xlt_serve.evaluation.answers import Answers
from xlt_serve.evaluation.judging import by_language as by_language_of
from xlt_serve.files.labelled import Labelled
from xlt_serve.runtime.batching import plan
from xlt_serve.types import Settings
from xlt_training.data import Splits
from xlt_training.loop.method import Pairing
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Example

Predict = Callable[[Sequence[Example]], list[str | None]]


@dataclass(frozen=True)
class Score:
    """Share of right labels among ``count`` examples; ``majority`` is what the commonest gets."""

    accuracy: float
    count: int
    majority: float


@torch.inference_mode()
def logits(model: Classifier, examples: Sequence[Example]) -> np.ndarray:
    """[examples, labels] of a torch model in eval mode."""
    was_training = model.training
    model.eval()
    budget = 8192 if model.device.type == "cuda" else 512  # a CPU's caches hold no more
    # Characters stand for tokens here: the plan only has to put similar lengths together.
    lengths = [1 + sum(len(text) for text in example.texts()) for example in examples]
    out = np.zeros((len(examples), len(model.labels)), dtype=np.float32)
    for rows in plan(lengths, 4 * budget):
        batch = model.batch([examples[i] for i in rows])
        out[rows] = model(batch).logits.float().cpu().numpy()
    model.train(was_training)
    return out


@torch.inference_mode()
def paired_probabilities(
    method: Pairing,
    model: Classifier,
    examples: Sequence[Example],
    sources: Sequence[Example],
    size: int = 16,
) -> np.ndarray:
    """The prediction of a model that mixes: the mean of both streams' probabilities, or of the source stream and a
    plain pass where the method was trained to predict without mixing."""
    model.eval()
    out = []
    for start in range(0, len(examples), size):
        batch = model.batch(examples[start : start + size])
        mixed = method.mix(model, batch, model.batch(sources[start : start + size]))
        target = mixed.target.logits if method.mixup_inference else model(batch).logits
        out.append((target.softmax(-1) + mixed.source.logits.softmax(-1)).cpu().numpy() / 2)
    return np.concatenate(out)


def answers_of(
    model: Classifier, rows: Sequence[Labelled], settings: Settings
) -> dict[str, Answers]:
    """What a checkpoint says of labelled rows, by language: without a temperature, which export fits."""
    out = {}
    for language, mine in by_language_of(rows).items():
        examples = [Example(row.text, row.label, row.language, row.pair) for row in mine]
        shares = softmax(logits(model, examples))
        out[language] = Answers(
            labels=tuple(model.labels),
            ids=tuple(row.id for row in mine),
            truth=tuple(row.label for row in mine),
            best=tuple(model.labels[int(row.argmax())] for row in shares),
            given=shares.max(axis=1) >= (settings.abstain_below or 0.0),
            shares=shares,
        )
    return out


def torch_predictor(model: Classifier) -> Predict:
    def predict(examples: Sequence[Example]) -> list[str | None]:
        return [model.labels[int(i)] for i in logits(model, examples).argmax(axis=1)]

    return predict


def score(predicted: Sequence[str | None], truth: Sequence[str]) -> Score:
    right = sum(p == t for p, t in zip(predicted, truth, strict=True))
    commonest = max(truth.count(label) for label in set(truth))
    return Score(right / len(truth), len(truth), commonest / len(truth))


def by_language(
    predict: Predict,
    data: Splits,
    split: str,
    chosen: Sequence[str] = (),
    progress: bool = False,
) -> dict[str, Score]:
    """The score on a split in each language, all that it has unless some are ``chosen``."""
    out = {}
    there = list(chosen) or data.languages(split)
    for language in tqdm(there, disable=not progress, desc="evaluating"):
        examples = data.load(split, language)
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
