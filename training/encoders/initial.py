"""A good start: every piece's embedding begins as the teacher's meaning of that piece.

The teacher's vector of a single word is already aligned across its languages, so the student
starts with a cross-lingual vocabulary instead of noise. A piece of a language that the teacher
never saw takes the mean of the teacher's vectors of the English sentences (and dictionary words)
whose translations contain it, centred so that frequent pieces do not all become "average English".
"""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedTokenizerFast

from training.encoders.corpus import TEACHER_LANGUAGES
from training.encoders.examples import Material


def piece_vectors(
    tokenizer: PreTrainedTokenizerFast,
    material: Material,
    teacher_of_pieces: np.ndarray,
    teacher_of_targets: np.ndarray,
) -> np.ndarray:
    """[pieces, 512]: teacher vectors of pieces, or of the contexts of pieces it can't know."""
    size = len(tokenizer)
    counts = {kind: np.zeros(size, dtype=np.float64) for kind in ("known", "untaught")}
    context = np.zeros((size, teacher_of_targets.shape[1]), dtype=np.float64)
    weight = np.zeros(size, dtype=np.float64)
    for language, pools in material.pools.items():
        for kind in ("own", "translation", "dictionary"):
            rows = pools.get(kind, [])
            if not rows:
                continue
            encoded = tokenizer([row[0] for row in rows], add_special_tokens=False)["input_ids"]
            known = language in TEACHER_LANGUAGES
            for (_, _, aim), ids in zip(rows, encoded, strict=True):
                counts["known" if known else "untaught"][ids] += 1
                if not known and ids:
                    # A short text says more about each of its pieces.
                    context[ids] += teacher_of_targets[aim].astype(np.float64) / len(ids)
                    weight[ids] += 1 / len(ids)
    mostly_untaught = (counts["untaught"] > counts["known"]) & (weight > 0)
    out = teacher_of_pieces.astype(np.float64).copy()
    out -= out.mean(axis=0)
    mean = context.sum(axis=0) / max(weight.sum(), 1e-9)
    out[mostly_untaught] = context[mostly_untaught] / weight[mostly_untaught, None] - mean
    norms = np.linalg.norm(out, axis=1, keepdims=True)
    return (out / np.maximum(norms, 1e-6)).astype(np.float32)


def reduce_width(vectors: np.ndarray, width: int, deviation: float) -> np.ndarray:
    """The leading ``width`` principal directions, scaled to one standard deviation overall."""
    centred = vectors - vectors.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    reduced = centred @ directions[:, ::-1][:, :width]
    return (reduced * (deviation / reduced.std())).astype(np.float32)


def piece_texts(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Each piece as the text that the teacher reads."""
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return [piece.replace("▁", " ").strip() or "." for piece in pieces]
