"""Reproducible noise: draw n of a text under a seed is the same in every batch, worker and run.

A counter-based generator (Philox) makes a draw addressable: its key is a hash of seed and text, its
counter the number of the draw. Nothing has to be generated to reach draw 500.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from xlt_serve.errors import UsageError

Kind = Literal["gaussian", "uniform"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Place = Literal["embeddings", "encoder"]


@dataclass(frozen=True, slots=True)
class Noise:
    """``scale``: the deviation σ of gaussian noise, the half-width b of uniform noise; ``at``: on the
    embeddings of all real tokens, or on the encoder's output at the first."""

    kind: Kind
    scale: float
    at: Place = "embeddings"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"noise {self.kind!r}", f"must be one of {', '.join(KINDS)}")
        if not 0 < self.scale < float("inf"):
            raise UsageError(f"noise scale {self.scale}", "must be positive")

    @property
    def norm(self) -> str:
        """In which the certificate's radius is measured."""
        return "l2" if self.kind == "gaussian" else "l1"


def stream_key(seed: int, item: str | tuple[str, str]) -> int:
    """128 bits of sha256 over the seed and the sha256 of the text (of both texts of a pair)."""
    texts = (item,) if isinstance(item, str) else item
    hashes = b"".join(
        hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts
    )
    digest = hashlib.sha256(str(seed).encode() + b"/" + hashes).digest()
    return int.from_bytes(digest[:16], "little")


def draw(key: int, number: int, shape: tuple[int, ...], noise: Noise) -> npt.NDArray[np.float32]:
    """The noise of draw ``number``: [tokens, width], or [width] at the encoder's output.

    The number stands in the highest of the counter's four words: draws never overlap.
    """
    generator = np.random.Generator(np.random.Philox(key=key, counter=number << 192))
    if noise.kind == "gaussian":
        values = generator.standard_normal(shape, dtype=np.float32)
    else:
        values = 2 * generator.random(shape, dtype=np.float32) - 1
    return np.float32(noise.scale) * values
