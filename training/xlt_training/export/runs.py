"""Run any graph of a bundle over tokenised texts, as serving would, for comparisons at export."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xlt_serve.bundle import Bundle
from xlt_serve.runtime.batching import plan
from xlt_serve.runtime.graph_io import pad
from xlt_serve.runtime.session import Session
from xlt_serve.text.tokens import Piece

Run = Callable[[Sequence[Piece], int], np.ndarray]
"""(pieces that go into one batch, columns of padding to add) → logits [pieces, streams, labels]."""


def runner(bundle: Bundle, graph: str, deviation: float = 0.0) -> Run:
    """``perturbed`` gets noise of this ``deviation``, the same for a text in every batch; ``paired``
    gets each text as its own translation."""
    described = bundle.manifest.graphs[graph]
    session = Session(bundle.file(described.file))
    typed = "token_type_ids" in described.inputs

    def run(pieces: Sequence[Piece], columns: int) -> np.ndarray:
        ids, mask = _padded([piece.ids for piece in pieces], bundle.manifest.pad_id, columns)
        feeds: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        if typed:
            feeds["token_type_ids"] = _padded([piece.type_ids for piece in pieces], 0, columns)[0]
        if graph == "plain":
            return session.run(feeds)["logits"][:, None]
        if graph == "paired":
            feeds |= {"source_ids": ids, "source_mask": mask}
            if typed:
                feeds["source_type_ids"] = feeds["token_type_ids"]
            out = session.run(feeds)
            return np.stack([out["target_logits"], out["source_logits"]], axis=1)
        shape = noise_shape(session, ids.shape[1])
        feeds["row"] = np.arange(len(pieces))
        feeds["noise"] = np.stack([noise(piece, shape, deviation) for piece in pieces])
        return session.run(feeds)["logits"][:, None]

    return run


def in_batches(run: Run, pieces: Sequence[Piece], budget: int = 2048) -> np.ndarray:
    """Logits of all pieces in order, in batches of similar length."""
    batches = plan([len(piece.ids) for piece in pieces], budget)
    order = [index for batch in batches for index in batch]
    rows = [run([pieces[i] for i in batch], 0) for batch in batches]
    return np.concatenate(rows)[np.argsort(order)]


def noise(piece: Piece, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    """Noise that belongs to the text alone: a longer batch appends to it, nothing moves."""
    if not deviation:
        return np.zeros(shape, dtype=np.float32)
    generator = np.random.default_rng(zlib.crc32(json.dumps(piece.ids).encode()))
    return (deviation * generator.standard_normal(shape, dtype=np.float32)).astype(np.float32)


def noise_shape(session: Session, length: int) -> tuple[int, ...]:
    """Of one draw: [length, width], with the soft prompts' positions, or [width]."""
    _, *dims = session.dims["noise"]
    return tuple(length + _extra(dim) if isinstance(dim, str) else dim for dim in dims)


def _extra(dim: str) -> int:
    """``length + 5`` → 5."""
    return int(dim.partition("+")[2] or 0)


def _padded(rows: list[list[int]], value: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    ids, mask = pad(rows, value)
    wider = ((0, 0), (0, columns))
    return np.pad(ids, wider, constant_values=value), np.pad(mask, wider)
