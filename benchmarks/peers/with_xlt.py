"""Our own plain graph, in the session that serves it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import loop
import numpy as np

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, like the peers, so from anywhere


def make(checkpoint: Path, folder: Path, precision: str) -> None:
    from xlt_training.loop.network import Classifier
    from xlt_training.loop.pretrained import load_classifier, load_tokenizer

    from benchmarks import random_bundles

    data = Path(os.environ.get("XLT_DATA", ROOT.parent / "shared" / "data"))
    tokenizer = load_tokenizer(data / "tokenizers" / "xlm-roberta")
    network = Classifier(load_classifier(str(checkpoint), {}), tokenizer, max_length=512)
    random_bundles.save(network, folder, precision=precision)


def load(folder: Path, precision: str, threads: int) -> loop.Predict:
    from xlt_serve.runtime.session import Options, Session

    session = Session(folder / "plain.onnx", Options(threads=threads, spin=True))  # as the peers do

    def predict(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return session.run({"input_ids": ids, "attention_mask": mask})["logits"]

    return predict


if __name__ == "__main__":
    loop.main(make, load)
