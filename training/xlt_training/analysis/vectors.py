"""Sentence vectors of an encoder folder: what its analyses look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from xlt_serve.runtime.batching import plan
from xlt_training.loop import model as models
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch


class SentenceEncoder:
    """First-token vectors; through the projection to the teacher's space where the folder has one.

    Of a checkpoint those that it classifies by: with its adapters, or its prompts.
    """

    def __init__(self, folder: Path, max_length: int = 128) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.trained: Classifier | None = None
        if (folder / models.DESCRIPTION).is_file():
            self.trained = models.load(folder)[0]
            max_length = min(max_length, self.trained.encoding.max_length)
        else:
            self.model = AutoModel.from_pretrained(
                folder, dtype=torch.float32, add_pooling_layer=False
            ).eval()
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
            hidden = self._last(padded)[:, 0]
            if self.projection is not None:
                hidden = hidden @ self.projection["weight"].T + self.projection["bias"]
            if out is None:
                out = np.zeros((len(rows), hidden.shape[1]), dtype=np.float32)
            out[batch] = hidden.numpy()
        return out if out is not None else np.zeros((0, self.width), np.float32)

    @property
    def width(self) -> int:
        if self.trained is not None:
            return self.trained.width
        return int(self.model.config.hidden_size)

    def _last(self, padded: Mapping[str, Tensor]) -> Tensor:
        """The encoder's output [batch, length, width]."""
        if self.trained is None:
            last: Tensor = self.model(**padded).last_hidden_state
            return last
        ids, mask = padded["input_ids"], padded["attention_mask"]
        types = padded.get("token_type_ids") if self.trained.encoding.type_ids else None
        batch = Batch(input_ids=ids, attention_mask=mask, labels=ids[:, 0], token_type_ids=types)
        return self.trained.encode(batch)[0]
