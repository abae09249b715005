"""One peer on a transformers checkpoint, run as a script by the interpreter that has it installed.

It imports nothing of ours, and answers lines of JSON: ``{"batch": NAME, "times": K}`` with the seconds
of K runs and the logits of the last. Standard output belongs to the answers.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Predict = Callable[[Any, Any], Any]  # ids, mask [rows, length] → logits [rows, labels]
HEAD = ("dense.weight", "dense.bias", "out_proj.weight", "out_proj.bias")


def with_transformers(checkpoint: str, threads: int) -> Predict:
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    torch.set_num_threads(threads)
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(checkpoint, dtype="float32").eval()

    def predict(ids: Any, mask: Any) -> Any:
        with torch.inference_mode():
            given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            return model(**given).logits.numpy()

    return predict


def with_optimum(checkpoint: str, threads: int) -> Predict:
    ort = importlib.import_module("onnxruntime")
    optimum = importlib.import_module("optimum.onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    model = optimum.ORTModelForSequenceClassification.from_pretrained(
        checkpoint, export=True, session_options=options
    )

    def predict(ids: Any, mask: Any) -> Any:
        return model(input_ids=ids, attention_mask=mask).logits

    return predict


def with_openvino(checkpoint: str, threads: int) -> Predict:
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    openvino = importlib.import_module("openvino")
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(checkpoint, dtype="float32").eval()
    example = torch.ones((2, 16), dtype=torch.long)
    converted = openvino.convert_model(
        model, example_input={"input_ids": example, "attention_mask": example}
    )
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    # Left to itself it computes in bfloat16 where the processor can.
    settings["INFERENCE_PRECISION_HINT"] = "f32"
    request = openvino.compile_model(converted, "CPU", settings).create_infer_request()

    def predict(ids: Any, mask: Any) -> Any:
        return np.array(request.infer({"input_ids": ids, "attention_mask": mask})[0])

    return predict


def with_ctranslate2(checkpoint: str, threads: int) -> Predict:
    """Its encoder stops at the last hidden states: the head is numpy."""
    ctranslate2 = importlib.import_module("ctranslate2")
    converters = importlib.import_module("ctranslate2.converters")
    safetensors = importlib.import_module("safetensors.numpy")
    folder = tempfile.mkdtemp(prefix="xlt-peer-")
    converters.TransformersConverter(checkpoint).convert(folder, force=True)
    weights = safetensors.load_file(str(Path(checkpoint) / "model.safetensors"))
    dense, dense_bias, out, out_bias = (weights[f"classifier.{name}"] for name in HEAD)
    encoder = ctranslate2.Encoder(folder, compute_type="float32", intra_threads=threads)

    def predict(ids: Any, mask: Any) -> Any:
        given = ctranslate2.StorageView.from_array(ids.astype(np.int32))
        lengths = ctranslate2.StorageView.from_array(mask.sum(axis=1).astype(np.int32))
        states = np.array(encoder.forward_batch(given, lengths).last_hidden_state)
        return np.tanh(states[:, 0] @ dense.T + dense_bias) @ out.T + out_bias

    return predict


LOAD: dict[str, Callable[[str, int], Predict]] = {
    "transformers": with_transformers,
    "optimum": with_optimum,
    "openvino": with_openvino,
    "ctranslate2": with_ctranslate2,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=LOAD)
    parser.add_argument("checkpoint")
    parser.add_argument("batches")
    parser.add_argument("threads", type=int)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print as they like
    predict = LOAD[options.name](options.checkpoint, options.threads)
    batches = np.load(options.batches)
    version = importlib.metadata.version(
        "optimum-onnx" if options.name == "optimum" else options.name
    )
    print(json.dumps({"version": version}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        ids, mask = batches[f"{question['batch']}/ids"], batches[f"{question['batch']}/mask"]
        seconds = []
        for _ in range(question["times"]):
            begun = time.perf_counter()
            logits = predict(ids, mask)
            seconds.append(time.perf_counter() - begun)
        answer = {"seconds": seconds, "logits": np.asarray(logits).tolist()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
