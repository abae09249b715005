"""Reproducible noise: draw n of a text under a seed is the same in every batch, worker and run.

A counter-based generator (Philox) makes a draw addressable: its key is a hash of seed and text, its
counter the number of the draw. Nothing has to be generated to reach draw 500.

Draws are independent of each other. Antithetic or stratified ones are not, which is what every bound
of ``certify`` needs, so there are none.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from xlt_serve.errors import UsageError
from xlt_serve.smoothing import certify

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

    def threshold(self, radius: float) -> float:
        """What a label's probability must exceed to hold within ``radius``."""
        if self.kind == "gaussian":
            return certify.gaussian_threshold(self.scale, radius)
        return certify.uniform_threshold(self.scale, radius)

    def radius(self, bound: float) -> float:
        """Within which a label holds whose probability is at least ``bound``."""
        if bound <= 0.5:
            return 0.0
        if self.kind == "gaussian":
            return certify.gaussian_radius(self.scale, bound)
        return certify.uniform_radius(self.scale, bound)


def stream_key(seed: int, item: str | tuple[str, str]) -> int:
    """128 bits of sha256 over the seed and the sha256 of the text (of both texts of a pair)."""
    texts = (item,) if isinstance(item, str) else item
    hashes = b"".join(
        hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts
    )
    digest = hashlib.sha256(str(seed).encode() + b"/" + hashes).digest()
    return int.from_bytes(digest[:16], "little")


class NoiseSource:
    """Draws of noise. It holds a generator that is put in its place for each draw, as making one
    takes longer than the noise of a short text. Not to be shared between threads."""

    def __init__(self) -> None:
        self._philox = np.random.Philox(0)
        self._state = self._philox.state

    def fill(self, key: int, number: int, noise: Noise, out: npt.NDArray[np.float32]) -> None:
        """The noise of draw ``number`` into ``out``, which must be contiguous.

        Gaussian by Box & Muller 1958, of 32 bits each for radius and angle: four times as fast as
        numpy's own, and only what lies beyond 6.7 σ, 1.4e-11 of all values, is left out.
        """
        flat = out.reshape(-1)
        half = (len(flat) + 1) // 2
        bits = self.bits(key, number, half)
        scale = np.float32(noise.scale)
        if noise.kind == "uniform":
            flat[:] = bits[: len(flat)]
            flat *= scale * np.float32(2**-31)
            flat -= scale
            return
        radius = bits[:half].astype(np.float32)
        radius += np.float32(0.5)
        radius *= np.float32(2**-32)
        np.log(radius, out=radius)
        radius *= np.float32(-2) * scale * scale
        np.sqrt(radius, out=radius)
        angle = bits[half:].astype(np.float32)
        angle *= np.float32(2 * np.pi * 2**-32)
        np.multiply(np.cos(angle), radius, out=flat[:half])
        rest = len(flat) - half
        np.multiply(np.sin(angle[:rest]), radius[:rest], out=flat[half:])

    def bits(self, key: int, number: int, words: int) -> npt.NDArray[np.uint32]:
        """Twice as many numbers of 32 bits, from the place that key and number address. The number
        stands in the highest of the counter's four words: draws never overlap."""
        place = self._state["state"]
        place["key"][:] = key & (2**64 - 1), key >> 64
        place["counter"][:] = 0, 0, 0, number
        self._philox.state = self._state
        return np.asarray(self._philox.random_raw(words)).view(np.uint32)


def draw(key: int, number: int, shape: tuple[int, ...], noise: Noise) -> npt.NDArray[np.float32]:
    """The noise of draw ``number``: [tokens, width], or [width] at the encoder's output."""
    out = np.empty(shape, dtype=np.float32)
    NoiseSource().fill(key, number, noise, out)
    return out


def generator(key: int, number: int) -> np.random.Generator:
    """Of draw ``number``, for what is not noise on a tensor."""
    return np.random.Generator(np.random.Philox(key=key, counter=number << 192))
