"""How well two languages share a space: measures on vectors of parallel sentences."""

from __future__ import annotations

import numpy as np


def linear_cka(x: np.ndarray, y: np.ndarray) -> float:
    """Linear centred kernel alignment of [n, d1] and [n, d2]: ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖)."""
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    shared = np.linalg.norm(y.T @ x) ** 2
    return float(shared / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def retrieval_accuracy(queries: np.ndarray, candidates: np.ndarray) -> float:
    """Share of queries whose nearest candidate by cosine is the one with the same number."""
    left = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    right = candidates / np.linalg.norm(candidates, axis=1, keepdims=True)
    return float(((left @ right.T).argmax(axis=1) == np.arange(len(left))).mean())
