"""CTranslate2's encoder, with the head in numpy."""

from __future__ import annotations

from pathlib import Path

import loop
import numpy as np

COMPUTE = {"fp32": "float32", "int8": "int8"}


def make(checkpoint: Path, folder: Path, precision: str) -> None:
    head = loop.peer.convert_to_ctranslate2(
        str(checkpoint), str(folder / "model"), COMPUTE[precision]
    )
    np.savez(folder / "head.npz", **head)


def load(folder: Path, precision: str, threads: int) -> loop.Predict:
    head = dict(np.load(folder / "head.npz"))
    return loop.peer.ctranslate2_predict(str(folder / "model"), head, threads, COMPUTE[precision])


if __name__ == "__main__":
    loop.main(make, load)
