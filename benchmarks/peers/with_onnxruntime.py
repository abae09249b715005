"""A graph in onnxruntime with its default settings: how optimum opens its own exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from loop import Predict


def load(file: Path, threads: int) -> Predict:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])

    def predict(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        logits: np.ndarray = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        return logits

    return predict
