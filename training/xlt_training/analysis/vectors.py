"""Sentence vectors of an encoder folder: what its analyses look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from xlt_serve.runtime.batching import plan


class SentenceEncoder:
    """First-token vectors; through the projection to the teacher's space where the folder has one."""

    def __init__(self, folder: Path, max_length: int = 128) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder, dtype=torch.float32, add_pooling_layer=False)
        self.model.eval()
        self.max_length = max_length
        projection = folder / "projection.safetensors"
        self.projection = (
            {name: value.float() for name, value in load_file(projection).items()}
            if projection.exists()
            else None
        )

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], budget: int = 8192) -> np.ndarray:
        """[texts, width], not normalised."""
        rows = self.tokenizer(list(texts), truncation=True, max_length=self.max_length)["input_ids"]
        out: np.ndarray | None = None
        for batch in plan([len(row) for row in rows], budget):
            padded = self.tokenizer.pad(
                {"input_ids": [rows[i] for i in batch]}, return_tensors="pt"
            )
            hidden = self.model(**padded).last_hidden_state[:, 0]
            if self.projection is not None:
                hidden = hidden @ self.projection["weight"].T + self.projection["bias"]
            if out is None:
                out = np.zeros((len(rows), hidden.shape[1]), dtype=np.float32)
            out[batch] = hidden.numpy()
        return out if out is not None else np.zeros((0, self.model.config.hidden_size), np.float32)
