"""Does an exported graph compute what the torch model computes? Random ids, several shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xlt_serve.runtime.graph_io import (
    NOISE,
    ROW,
    TEXT,
    TRANSLATION,
    GraphIO,
    PairedIO,
    PerturbedIO,
    PlainIO,
    Stream,
)
from xlt_serve.runtime.session import Session
from xlt_training.loop.method import Pairing
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch

SHAPES = ((1, 1), (1, 2), (2, 1), (1, 16), (3, 37), (8, 128), (8, 512))

Differences = dict[str, float]
Tensors = Mapping[str, Tensor]


def plain(model: Classifier, file: Path) -> Differences:
    """Largest logit difference by shape."""

    def expected(given: Tensors) -> dict[str, Tensor]:
        return dict(zip(PlainIO.logits, [model(batch_of(given)).logits], strict=True))

    return _over_shapes(model, PlainIO, file, expected)


def perturbed(model: Classifier, file: Path, at: str) -> Differences:
    """The same with two draws for each text, under noise a tenth as large as E(x) itself."""

    def expected(given: Tensors) -> dict[str, Tensor]:
        batch, row, noise = batch_of(given), given[ROW], given[NOISE]
        types = None if batch.token_type_ids is None else batch.token_type_ids[row]
        draws = Batch(batch.input_ids[row], batch.attention_mask[row], row, types)
        if at == "embeddings":
            moved = replace(draws, embeddings=model.embed(batch)[row] + noise)
        else:
            moved = replace(draws, shift=noise)
        return dict(zip(PerturbedIO.logits, [model(moved).logits], strict=True))

    def sizes(rows: int, width: int) -> dict[str, int]:
        return {PerturbedIO.rows: 2 * rows}

    return _over_shapes(model, PerturbedIO, file, expected, sizes)


def paired(model: Classifier, file: Path, pairing: Pairing) -> Differences:
    """Both streams, the ratio and the agreement, the source a little shorter than the target."""

    def expected(given: Tensors) -> dict[str, Tensor]:
        mixed = pairing.mix(model, batch_of(given), batch_of(given, TRANSLATION))
        logits = [mixed.target.logits, mixed.source.logits]
        numbers = {"ratio": mixed.ratio, "agreement": mixed.agreement}
        return {**dict(zip(PairedIO.logits, logits, strict=True)), **numbers}

    def sizes(rows: int, width: int) -> dict[str, int]:
        return {TRANSLATION.length: max(1, width * 2 // 3)}

    return _over_shapes(model, PairedIO, file, expected, sizes)


def batch_of(given: Tensors, stream: Stream = TEXT) -> Batch:
    """One stream of a graph's inputs as the torch model takes it."""
    return Batch(given[stream.ids], given[stream.mask], given[stream.mask], given.get(stream.types))


@torch.inference_mode()
def _over_shapes(
    model: Classifier,
    kind: type[GraphIO[Any]],
    file: Path,
    expected: Callable[[Tensors], dict[str, Tensor]],
    sizes: Callable[[int, int], dict[str, int]] = lambda rows, width: {},
) -> Differences:
    """``sizes``: of dimensions that are neither the rows nor the width."""
    session = Session(file)
    io = kind(session.dims, model.tokenizer.pad_token_id)
    out = {}
    for rows, widest in SHAPES:
        width = min(widest, model.room)
        chosen = io.sizes(rows, width) | sizes(rows, width)
        feeds = io.example(chosen, model.hf.config.vocab_size, ragged=True)
        given = session.run(feeds)
        wanted = expected({name: torch.from_numpy(array) for name, array in feeds.items()})
        found = [np.abs(given[name] - value.numpy()).max() for name, value in wanted.items()]
        out[f"{rows}x{widest}"] = float(np.max(found))
    return out
