"""CTranslate2's encoder. It stops at the last hidden states: the head (a 768 × 768 and a 768 × 7
product for each text) is numpy."""

from __future__ import annotations

from pathlib import Path

import loop
import numpy as np

COMPUTE = {"fp32": "float32", "int8": "int8"}
HEAD = ("dense.weight", "dense.bias", "out_proj.weight", "out_proj.bias")


def make(checkpoint: Path, folder: Path, precision: str) -> None:
    from ctranslate2.converters import TransformersConverter
    from safetensors.numpy import load_file

    converter = TransformersConverter(str(checkpoint))
    converter.convert(str(folder / "model"), quantization=COMPUTE[precision], force=True)
    weights = load_file(checkpoint / "model.safetensors")
    np.savez(folder / "head.npz", **{name: weights[f"classifier.{name}"] for name in HEAD})


def load(folder: Path, precision: str, threads: int) -> loop.Predict:
    import ctranslate2

    encoder = ctranslate2.Encoder(
        str(folder / "model"), compute_type=COMPUTE[precision], intra_threads=threads
    )
    arrays = np.load(folder / "head.npz")
    dense, dense_bias, out, out_bias = (arrays[name] for name in HEAD)

    def predict(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        given = ctranslate2.StorageView.from_array(ids.astype(np.int32))
        lengths = ctranslate2.StorageView.from_array(mask.sum(axis=1).astype(np.int32))
        states = np.array(encoder.forward_batch(given, lengths).last_hidden_state)
        hidden = np.tanh(states[:, 0] @ dense.T + dense_bias)
        return np.asarray(hidden @ out.T + out_bias)

    return predict


if __name__ == "__main__":
    loop.main(make, load)
