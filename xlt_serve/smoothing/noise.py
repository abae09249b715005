"""Reproducible noise: draw n of a text under a seed is the same in every batch, worker and run.

A counter-based generator (Philox) makes a draw addressable: its key is a hash of seed and text, its
counter the number of the draw. Nothing has to be generated to reach draw 500.

Draws are independent of each other. Antithetic or stratified ones are not, which is what every bound
of ``certify`` needs, so there are none.

The theorems are about x + δ with real numbers. What the model votes on is rounded: δ has 24 bits, the
sum is rounded again in the graph's precision, and a network of 8-bit products jumps where a rounding
does. A network that is made to read the last bits of the sum can tell texts apart that the theorem
takes for one (Jin et al. 2022; Voráček & Hein 2023), and no margin helps against it. For one that is
not, let τ be the probability that a draw's vote differs between two evaluations that differ by
rounding, at the text and wherever the radius leads. Then a label that has p of the votes has p − τ of
the exact ones, and keeps the majority of votes while it has ½ + τ of the exact ones: the radius is
R(p − τ) − R(½ + τ), R the theorem's. τ is ``Noise.changed``.

τ is no bound that was proved. It was measured where p is about ½ (decision 0011): there the most draws lie
near a tie, and there a radius ends. For every bundle but the one that ships it is an assumption, and its
certificates hold as far as the assumption does. ``tests/xlt_serve/smoothing/near_boundary.py`` measures a
bundle.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from xlt_serve.errors import UsageError
from xlt_serve.smoothing import certify

Kind = Literal["gaussian", "uniform"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Place = Literal["embeddings", "encoder"]

SMALLEST, LARGEST = 1e-6, 1e4
"""Of a scale. Embeddings are of the order of 1: noise below is lost when float32 adds it. Above, nothing
is left of the text, and squares (LayerNorm's, ours) come near the end of the floats."""
LARGEST_RADIUS = 10 * LARGEST
"""No number of draws that may be asked for proves more than 10 σ."""
FP16_SMALLEST, FP16_LARGEST = 1e-2, 1e2
"""The same where the graph adds in float16, whose numbers have 11 bits and end at 65,504."""

SLACK = 2.0**-36
"""More than the error of a radius or threshold in float64, of radii in units of the scale."""

TF32 = "tf32"
"""Of a graph of fp32 weights whose products have the 11 bits of float16: TensorRT's choice."""

_CHANGED = {"fp32": (1e-3, 8 * 2.0**-24), "int8": (6e-3, 3e-4), "fp16": (1e-2, 1e-3)}
"""Votes that rounding changes: a share of them, and what is added for one token and noise of scale 1.
The less noise moves the logits, the more draws lie so near a tie that a rounding turns them: that of n
tokens averages out, and moves them by σ/√n."""
_AS_RUN = _CHANGED | {TF32: _CHANGED["fp16"]}


@dataclass(frozen=True, slots=True)
class Noise:
    """``scale``: the deviation σ of gaussian noise, the half-width b of uniform noise; ``at``: on the
    embeddings of all real tokens, or on the encoder's output at the first; ``precision``: of the graph
    that adds it, as it is run; ``tokens`` that it is added to."""

    kind: Kind
    scale: float
    at: Place = "embeddings"
    precision: str = "fp32"
    tokens: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"noise {self.kind!r}", f"must be one of {', '.join(KINDS)}")
        if self.precision not in _AS_RUN:
            raise UsageError(
                f"a perturbed graph of {self.precision} weights",
                "certifies nothing: it isn't known how many votes its rounding changes",
                f"export with --precision {' or '.join(_CHANGED)}",
            )
        least, most = SMALLEST, LARGEST
        if self.precision == "fp16":
            least, most = FP16_SMALLEST, FP16_LARGEST
        if not least <= self.scale <= most:
            raise UsageError(
                f"noise scale {self.scale:g}",
                f"must be between {least:g} and {most:g} where the graph is {self.precision}",
            )

    @property
    def norm(self) -> str:
        """In which the certificate's radius is measured."""
        return "l2" if self.kind == "gaussian" else "l1"

    def threshold(self, radius: float) -> float:
        """What a label's share of the votes must exceed to hold within ``radius``."""
        exact = certify.uniform_threshold if self.kind == "uniform" else certify.gaussian_threshold
        changed = self.changed
        needed = exact(self.scale, radius + self._proved(0.5 + changed)) + changed
        return min(1.0, needed + SLACK)

    def radius(self, bound: float) -> float:
        """Within which a label holds whose share of the votes is at least ``bound``."""
        changed = self.changed
        if bound - changed <= 0.5 + changed:
            return 0.0
        found = self._proved(bound - changed) - self._proved(0.5 + changed)
        return max(0.0, found - SLACK * (found + self.scale))

    @property
    def changed(self) -> float:
        """τ: the share of draws whose vote rounding may change; ½: all that one could know."""
        share, of_small = _AS_RUN[self.precision]
        return min(0.5, share + of_small * math.sqrt(self.tokens) / self.scale)

    def _proved(self, p: float) -> float:
        """The theorem's radius of a label whose probability is p."""
        exact = certify.uniform_radius if self.kind == "uniform" else certify.gaussian_radius
        return exact(self.scale, p)


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
