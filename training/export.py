"""A checkpoint becomes a bundle, after its graph has shown that it agrees with the model."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from training import evaluate, quantize
from training import graph as graphs
from training import model as models
from training.data import languages, load_split
from training.model import Description
from training.network import Classifier
from training.types import Batch, Example
from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle, Graph, Manifest
from xlt_serve.calibrate import brier_score, expected_calibration_error, fit_temperature, softmax
from xlt_serve.errors import DataError, ExportRefused, UsageError
from xlt_serve.pipeline import Classifier as Served
from xlt_serve.session import Session

SHAPES = ((1, 1), (1, 2), (2, 1), (1, 16), (3, 37), (8, 128), (8, 512))
TOLERANCE = 1e-5
AGREEMENT = 0.99
PACKAGES = ("xlt-serve", "torch", "transformers", "onnx", "onnxruntime", "tokenizers", "numpy")


def export(
    checkpoint: Path,
    out: Path,
    *,
    name: str = "",
    precision: str = "fp32",
    data: str = "",
    notes: str = "",
    agreement: float = AGREEMENT,
) -> Bundle:
    """Write a bundle to ``out``, whole or not at all.

    With ``data`` (the task's folder; by default that of training, if it is still there) the gate
    also compares labels on real text per language, and the probabilities are calibrated.
    """
    if precision not in ("fp32", "int8"):
        raise UsageError(f"precision={precision!r}", "must be fp32 or int8")
    if out.exists() and any(out.iterdir()) and not (out / bundles.MANIFEST).is_file():
        raise UsageError(out, "is not empty and holds no bundle", "give an empty or new --out")
    model, description = models.load(checkpoint)
    data = data or str(description.config.get("task", {}).get("data", ""))
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".export-") as scratch:
        folder = Path(scratch) / "bundle"
        folder.mkdir()
        traced = graphs.trace(model)
        if precision == "int8":
            traced = quantize.int8(traced)
        graphs.save(traced, folder / "plain.onnx")
        model.tokenizer.save_pretrained(folder)
        model.hf.config.save_pretrained(folder)
        checks: dict[str, Any] = {"shapes": _check_shapes(model, folder / "plain.onnx", precision)}
        manifest = _manifest(name or out.name, model, description, precision, notes)
        draft = Served(bundles.save(folder, manifest))
        if has_data(description, data):
            checks["languages"] = _check_languages(model, draft, description, data, agreement)
            calibration = _calibrate(draft, description, data)
            manifest = dataclasses.replace(manifest, calibration={"plain": calibration})
            scored = evaluate.by_language(
                evaluate.bundle_predictor(folder), description.task, data, "dev"
            )
            scores = {language: dataclasses.asdict(score) for language, score in scored.items()}
            manifest = dataclasses.replace(
                manifest, scores={"dev": scores}, languages=tuple(scored)
            )
        del draft
        bundles.save(folder, dataclasses.replace(manifest, checks=checks))
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)
    return bundles.load(out)


def has_data(description: Description, data: str) -> bool:
    if description.task == "files" or not data:
        return False
    try:
        return bool(languages(description.task, data, "dev"))
    except DataError:
        return False


def _manifest(
    name: str,
    model: Classifier,
    description: Description,
    precision: str,
    notes: str,
) -> Manifest:
    plain = Graph("plain.onnx", graphs.input_names(model), ("logits",), precision)
    return Manifest(
        name=name,
        version="",
        task=description.task,
        pair=description.pair,
        labels=tuple(description.labels),
        source_language=description.source_language,
        languages=(description.source_language,),
        method={
            key: description.config[key]
            for key in ("encoder", "stages", "seed", "select")
            if key in description.config
        },
        graphs={"plain": plain},
        tokenizer="tokenizer.json",
        max_length=description.max_length,
        pad_id=model.tokenizer.pad_token_id,
        notes=notes,
        packages={package: importlib.metadata.version(package) for package in PACKAGES},
    )


@torch.inference_mode()
def _check_shapes(model: Classifier, file: Path, precision: str) -> dict[str, float]:
    """Largest logit difference to torch on random ids of several shapes, padded rows among them.

    Only fp32 has to meet the tolerance here; int8 is judged on real text.
    """
    session = Session(file)
    generator = torch.Generator().manual_seed(0)
    pad = model.tokenizer.pad_token_id
    out: dict[str, float] = {}
    for rows, width in SHAPES:
        width = min(width, model.room)
        ids = torch.randint(4, model.hf.config.vocab_size, (rows, width), generator=generator)
        mask = torch.ones_like(ids)
        for row in range(rows):
            mask[row, max(1, width - row * width // rows) :] = 0
        ids[mask == 0] = pad
        inputs = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in session.inputs:
            inputs["token_type_ids"] = (torch.arange(width) >= width // 2).long().repeat(rows, 1)
        expected = model(Batch(labels=mask, **inputs)).logits.numpy()
        given = session.run({key: value.numpy() for key, value in inputs.items()})["logits"]
        out[f"{rows}x{width}"] = float(np.abs(given - expected).max())
    worst = max(out, key=lambda shape: out[shape])
    if precision == "fp32" and not out[worst] <= TOLERANCE:
        raise ExportRefused(
            f"{out[worst]:.2e}",
            f"is how far the graph's logits are from torch's at shape {worst}, over {TOLERANCE}",
            "report this with the encoder's config.json",
        )
    return out


def _check_languages(
    model: Classifier,
    draft: Served,
    description: Description,
    data: str,
    least: float,
) -> dict[str, dict[str, float]]:
    """Agreement of labels with torch on the task's real text, language by language."""
    out: dict[str, dict[str, float]] = {}
    there = languages(description.task, data, "dev")
    for language in tqdm(there, disable=not sys.stderr.isatty(), desc="comparing with torch"):
        texts = unlabelled(description.task, data, language)
        expected = evaluate.logits(model, texts)
        given = draft_logits(draft, texts)
        same = expected.argmax(axis=1) == given.argmax(axis=1)
        out[language] = {
            "agreement": float(same.mean()),
            "largest_difference": float(np.abs(expected - given).max()),
            "texts": len(texts),
        }
    bad = {language: row["agreement"] for language, row in out.items() if row["agreement"] < least}
    if bad:
        shown = ", ".join(f"{language} {value:.3f}" for language, value in sorted(bad.items()))
        raise ExportRefused(
            shown,
            f"is the share of texts with torch's label, below {least}",
            "export with --precision fp32, or lower --agreement knowingly",
        )
    return out


def unlabelled(task: str, data: str, language: str, most: int = 500) -> list[Example]:
    """Real texts of a language: its dev split, and its train split where there is one."""
    out = load_split(task, data, "dev", language)
    if language in languages(task, data, "train"):
        out = out + load_split(task, data, "train", language)
    return out[:most]


def draft_logits(draft: Served, examples: Sequence[Example]) -> np.ndarray:
    """The bundle's logits through its own tokenizer, as serving computes them."""
    items = [e.text if e.pair is None else (e.text, e.pair) for e in examples]
    tokens = draft.encoder.encode(items)
    return draft.logits([t.pieces[0] for t in tokens if not isinstance(t, Exception)])


def _calibrate(draft: Served, description: Description, data: str) -> dict[str, float]:
    """A temperature on the source language's dev set, and what it does to the usual measures."""
    examples = load_split(description.task, data, "dev", description.source_language)
    examples = [e for e in examples if e.label in description.labels]
    truth = np.array([description.labels.index(e.label) for e in examples])
    values = draft_logits(draft, examples)
    temperature = fit_temperature(values, truth)
    raw, mended = softmax(values), softmax(values, temperature)
    return {
        "temperature": temperature,
        "examples": float(len(examples)),
        "ece_before": expected_calibration_error(raw, truth),
        "ece_after": expected_calibration_error(mended, truth),
        "brier_before": brier_score(raw, truth),
        "brier_after": brier_score(mended, truth),
    }
