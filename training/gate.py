"""The gate: an exported graph against the torch model on real text, language by language."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from training import evaluate
from training.data import languages, load_split
from training.data.files import read_rows
from training.data.tasks import to_examples
from training.model import Description
from training.network import Classifier
from training.types import Example
from xlt_serve.calibrate import brier_score, expected_calibration_error, fit_temperature, softmax
from xlt_serve.errors import DataError, ExportRefused
from xlt_serve.pipeline import Classifier as Served


@dataclass(frozen=True)
class Text:
    """Real text of one language: its dev examples, and some more whose labels are not looked at."""

    dev: list[Example]
    more: list[Example]


@dataclass(frozen=True)
class Verdict:
    """What goes into the manifest: agreement and scores per language, and the calibration."""

    agreement: dict[str, dict[str, float]]
    scores: dict[str, dict[str, float]]
    calibration: dict[str, float]


def real_text(description: Description, data: str, most: int = 300) -> dict[str, Text]:
    """Up to ``most`` texts per language of the task, or of the dev file of one's own; {} if they are
    not there any more."""
    task = description.config.get("task", {})
    source = description.source_language
    try:
        if description.task == "files":
            columns = {key: task.get(key, "") for key in ("text", "label", "pair")} | {"id": ""}
            rows = read_rows(Path(data or task.get("dev", "")))
            return {source: Text(to_examples(rows, columns, source, "dev")[:most], [])}
        if not data:
            return {}
        out = {}
        trained = languages(description.task, data, "train")
        for language in languages(description.task, data, "dev"):
            dev = load_split(description.task, data, "dev", language)[:most]
            train = (
                load_split(description.task, data, "train", language) if language in trained else []
            )
            out[language] = Text(dev, train[: most - len(dev)])
        return out
    except DataError:
        return {}


def judge(
    model: Classifier,
    draft: Served,
    texts: dict[str, Text],
    description: Description,
    least: float,
) -> Verdict:
    """Compare, score and calibrate; refuse where a language agrees with torch on too few texts."""
    agreement, scores = {}, {}
    calibration: dict[str, float] = {}
    for language, text in tqdm(
        texts.items(), disable=not sys.stderr.isatty(), desc="comparing with torch"
    ):
        everything = [*text.dev, *text.more]
        expected = evaluate.logits(model, everything)
        given = served_logits(draft, everything)
        same = expected.argmax(axis=1) == given.argmax(axis=1)
        agreement[language] = {
            "agreement": float(same.mean()),
            "largest_difference": float(np.abs(expected - given).max()),
            "texts": float(len(everything)),
        }
        on_dev = given[: len(text.dev)]
        named = [description.labels[int(best)] for best in on_dev.argmax(axis=1)]
        scores[language] = asdict(evaluate.score(named, [e.label for e in text.dev]))
        if language == description.source_language:
            calibration = calibrate(on_dev, text.dev, description.labels)
    bad = {lg: row["agreement"] for lg, row in agreement.items() if row["agreement"] < least}
    if bad:
        shown = ", ".join(f"{language} {value:.3f}" for language, value in sorted(bad.items()))
        raise ExportRefused(
            shown,
            f"is the share of texts with torch's label, below {least}",
            "export with --precision fp32, or lower --agreement knowingly",
        )
    return Verdict(agreement, scores, calibration)


def served_logits(draft: Served, examples: Sequence[Example]) -> np.ndarray:
    """The bundle's logits through its own tokenizer, as serving computes them."""
    items = [e.text if e.pair is None else (e.text, e.pair) for e in examples]
    tokens = draft.encoder.encode(items)
    return draft.logits([t.pieces[0] for t in tokens if not isinstance(t, Exception)])


def calibrate(
    values: np.ndarray, examples: Sequence[Example], labels: Sequence[str]
) -> dict[str, Any]:
    """A temperature on these examples, and what it does to the usual measures."""
    rows = [i for i, e in enumerate(examples) if e.label in labels]
    truth = np.array([labels.index(examples[i].label) for i in rows])
    temperature = fit_temperature(values[rows], truth)
    raw, mended = softmax(values[rows]), softmax(values[rows], temperature)
    return {
        "temperature": temperature,
        "examples": float(len(rows)),
        "ece_before": expected_calibration_error(raw, truth),
        "ece_after": expected_calibration_error(mended, truth),
        "brier_before": brier_score(raw, truth),
        "brier_after": brier_score(mended, truth),
    }
