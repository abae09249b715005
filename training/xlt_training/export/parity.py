"""Does an exported graph compute what the torch model computes? Random ids, several shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from xlt_serve.runtime.session import Session
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch
from xlt_training.methods.xmixup import XMixup

SHAPES = ((1, 1), (1, 2), (2, 1), (1, 16), (3, 37), (8, 128), (8, 512))

Differences = dict[str, float]


def random_batch(model: Classifier, rows: int, width: int, generator: torch.Generator) -> Batch:
    """Ids of any piece, each row padded a little more than the one before it."""
    width = min(width, model.room)
    ids = torch.randint(4, model.hf.config.vocab_size, (rows, width), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(rows):
        mask[row, max(1, width - row * width // rows) :] = 0
    ids[mask == 0] = model.tokenizer.pad_token_id
    types = (torch.arange(width) >= width // 2).long().repeat(rows, 1)
    return Batch(ids, mask, mask, types if model.encoding.type_ids else None)


def plain(model: Classifier, file: Path) -> Differences:
    """Largest logit difference by shape."""
    session = Session(file)

    def difference(batch: Batch, _: torch.Generator) -> float:
        given = session.run(_arrays(batch.inputs()))["logits"]
        return float(np.abs(given - model(batch).logits.numpy()).max())

    return _over_shapes(model, difference)


def perturbed(model: Classifier, file: Path, at: str) -> Differences:
    """The same with two draws for each text, under noise a tenth as large as E(x) itself."""
    session = Session(file)

    def difference(batch: Batch, generator: torch.Generator) -> float:
        row = torch.arange(len(batch.input_ids)).repeat(2)
        types = None if batch.token_type_ids is None else batch.token_type_ids[row]
        draws = Batch(batch.input_ids[row], batch.attention_mask[row], row, types)
        place = model.embed(batch) if at == "embeddings" else model.zero_shift(batch)
        noise = 0.1 * torch.randn(place[row].shape, generator=generator)
        if at == "embeddings":
            expected = model(replace(draws, embeddings=place[row] + noise)).logits
        else:
            expected = model(replace(draws, shift=noise)).logits
        feeds = batch.inputs() | {"row": row, "noise": noise}
        given = session.run(_arrays(feeds))["logits"]
        return float(np.abs(given - expected.numpy()).max())

    return _over_shapes(model, difference)


def paired(model: Classifier, file: Path, method: XMixup) -> Differences:
    """Both streams and the ratio, the source a little shorter than the target."""
    session = Session(file)

    def difference(batch: Batch, generator: torch.Generator) -> float:
        rows, width = batch.input_ids.shape
        source = random_batch(model, rows, max(1, width * 2 // 3), generator)
        mixed = method.mix(model, batch, source)
        feeds = batch.inputs()
        feeds |= {"source_ids": source.input_ids, "source_mask": source.attention_mask}
        if source.token_type_ids is not None:
            feeds["source_type_ids"] = source.token_type_ids
        given = session.run(_arrays(feeds))
        expected = {
            "target_logits": mixed.target.logits,
            "source_logits": mixed.source.logits,
            "ratio": mixed.ratio,
        }
        return max(float(np.abs(given[k] - v.numpy()).max()) for k, v in expected.items())

    return _over_shapes(model, difference)


@torch.inference_mode()
def _over_shapes(
    model: Classifier, difference: Callable[[Batch, torch.Generator], float]
) -> Differences:
    generator = torch.Generator().manual_seed(0)
    return {
        f"{rows}x{width}": difference(random_batch(model, rows, width, generator), generator)
        for rows, width in SHAPES
    }


def _arrays(feeds: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in feeds.items()}
