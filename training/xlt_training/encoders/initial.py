"""A good start: every piece begins with the teacher's own embedding of it.

The teacher's input embeddings are aligned across its languages, so the student starts with a
cross-lingual vocabulary instead of noise, rare words included. A piece of a language that the
teacher never saw takes the mean of what it translates: of the English words in dictionaries
first, of whole English sentences where no dictionary has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from transformers import PreTrainedTokenizerFast

from xlt_training.encoders.corpus import TEACHER_LANGUAGES
from xlt_training.encoders.examples import Material

Meaning = Callable[[str], np.ndarray]


def teacher_meaning(pieces: Sequence[tuple[str, float]], table: np.ndarray) -> Meaning:
    """text → the mean of the teacher's embeddings of its words, centred; [512]."""
    place = {piece: i for i, (piece, score) in enumerate(pieces) if score < 0}
    centred = table - table[list(place.values())].mean(axis=0)

    def meaning(text: str) -> np.ndarray:
        rows = [
            row
            for word in text.split()
            if (row := place.get(f"▁{word}", place.get(f"▁{word.lower()}")))
        ]
        return centred[rows].mean(axis=0) if rows else np.zeros(table.shape[1], dtype=table.dtype)

    return meaning


def piece_vectors(
    tokenizer: PreTrainedTokenizerFast,
    material: Material,
    known: Sequence[tuple[str, float]],
    table: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """[pieces, 512] embeddings in the teacher's space, and [pieces] how often the text uses each.

    ``known`` are the teacher's pieces, row by row of its ``table``.
    """
    size = len(tokenizer)
    meaning = teacher_meaning(known, table)
    counts = {kind: np.zeros(size) for kind in ("known", "untaught")}
    sums = {kind: np.zeros((size, table.shape[1])) for kind in ("dictionary", "translation")}
    weights = {kind: np.zeros(size) for kind in sums}
    for language, pools in material.pools.items():
        taught = language in TEACHER_LANGUAGES
        for kind in ("own", "translation", "dictionary", "masked"):
            rows = pools.get(kind, [])
            if not rows:
                continue
            encoded = tokenizer([row[0] for row in rows], add_special_tokens=False)["input_ids"]
            for (_, _, aim), ids in zip(rows, encoded, strict=True):
                np.add.at(counts["known" if taught else "untaught"], ids, 1)
                if taught or kind not in sums or not ids:
                    continue
                vector = meaning(material.targets[aim])
                if vector.any():
                    # A short text says more about each of its pieces.
                    np.add.at(sums[kind], ids, vector / len(ids))
                    np.add.at(weights[kind], ids, 1 / len(ids))
    place = {piece: i for i, (piece, score) in enumerate(known) if score < 0}
    names = tokenizer.convert_ids_to_tokens(list(range(size)))
    mean = table[list(place.values())].mean(axis=0)
    out = np.zeros((size, table.shape[1]))
    typical = float(np.linalg.norm(table[list(place.values())] - mean, axis=1).mean())
    for i, name in enumerate(names):
        untaught = counts["untaught"][i] > counts["known"][i]
        if name in place and not untaught:
            out[i] = table[place[name]] - mean
            continue
        for kind in ("dictionary", "translation"):
            if weights[kind][i] > 0:
                out[i] = sums[kind][i] / weights[kind][i]
                break
        else:
            if name in place:
                out[i] = table[place[name]] - mean
        length = np.linalg.norm(out[i])
        if length > 0:  # a mean of several is shorter than any of them
            out[i] *= typical / length
    return out.astype(np.float32), counts["known"] + counts["untaught"]


def reduce_width(
    vectors: np.ndarray, counts: np.ndarray, width: int, deviation: float
) -> np.ndarray:
    """The ``width`` directions that keep most of what the text uses, scaled to one deviation.

    Counts are cut off above: a comma needs no more directions than a common word.
    """
    weights = np.sqrt(np.minimum(counts, max(np.quantile(counts, 0.95), 1.0)))[:, None]
    _, directions = np.linalg.eigh((weights * vectors).T @ (weights * vectors))
    reduced = vectors @ directions[:, ::-1][:, :width]
    scaled: np.ndarray = (reduced * (deviation / reduced.std())).astype(np.float32)
    return scaled
