"""One peer on a transformers checkpoint, run as a script by the interpreter that has it installed.

It imports nothing of ours, and answers lines of JSON: ``{"batch": NAME, "times": K}`` with the seconds
of K runs and the logits of the last. Standard output belongs to the answers. Scripts of other peers
import this file for the protocol (``answer``).
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
Head = dict[str, Any]  # the arrays that HEAD names
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
    return openvino_predict(converted, threads, "f32")


def openvino_predict(model: Any, threads: int, precision: str = "") -> Predict:
    """``precision``: of its arithmetic. Left to itself, it is bfloat16 where the processor can."""
    openvino = importlib.import_module("openvino")
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    if precision:
        settings["INFERENCE_PRECISION_HINT"] = precision
    request = openvino.compile_model(model, "CPU", settings).create_infer_request()

    def predict(ids: Any, mask: Any) -> Any:
        found = request.infer({"input_ids": ids, "attention_mask": mask}, share_inputs=True)
        return np.array(found[0])

    return predict


def with_ctranslate2(checkpoint: str, threads: int) -> Predict:
    folder = tempfile.mkdtemp(prefix="xlt-peer-")
    return ctranslate2_predict(folder, convert_to_ctranslate2(checkpoint, folder), threads)


def convert_to_ctranslate2(checkpoint: str, folder: str, precision: str = "float32") -> Head:
    """Write the encoder to ``folder``; give back the head, which its encoder has not."""
    converters = importlib.import_module("ctranslate2.converters")
    safetensors = importlib.import_module("safetensors.numpy")
    converter = converters.TransformersConverter(checkpoint)
    converter.convert(folder, quantization=precision, force=True)
    weights = safetensors.load_file(str(Path(checkpoint) / "model.safetensors"))
    return {name: weights[f"classifier.{name}"] for name in HEAD}


def ctranslate2_predict(
    folder: str, head: Head, threads: int, precision: str = "float32"
) -> Predict:
    """Its encoder stops at the last hidden states. The head (a width × width and a width × labels
    product for each text) is numpy."""
    ctranslate2 = importlib.import_module("ctranslate2")
    encoder = ctranslate2.Encoder(folder, compute_type=precision, intra_threads=threads)
    dense, dense_bias, out, out_bias = (head[name] for name in HEAD)

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


def answer(batches: str | Path, load: Callable[[], tuple[Predict, dict[str, Any]]]) -> None:
    """Open a peer, say what it is, and answer the requests on standard input until it ends.

    ``batches``: a file with the arrays NAME/ids and NAME/mask.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print as they like
    predict, about = load()
    arrays = np.load(batches)
    print(json.dumps(about), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        ids, mask = arrays[f"{request['batch']}/ids"], arrays[f"{request['batch']}/mask"]
        seconds = []
        for _ in range(request["times"]):
            begun = time.perf_counter()
            logits = predict(ids, mask)
            seconds.append(time.perf_counter() - begun)
        found = {"seconds": seconds, "logits": np.asarray(logits).tolist()}
        print(json.dumps(found), file=answers, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=LOAD)
    parser.add_argument("checkpoint")
    parser.add_argument("batches")
    parser.add_argument("threads", type=int)
    options = parser.parse_args()

    def load() -> tuple[Predict, dict[str, Any]]:
        predict = LOAD[options.name](options.checkpoint, options.threads)
        package = "optimum-onnx" if options.name == "optimum" else options.name
        return predict, {"version": importlib.metadata.version(package)}

    answer(options.batches, load)


if __name__ == "__main__":
    main()
