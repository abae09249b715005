"""OpenVINO on optimum's export, in fp32 and in both of its int8 forms.

``int8``: weights and activations, scales fixed by calibration (NNCF post-training quantisation for
transformers); what is not int8 is bfloat16 where the processor has it, and fp32 in ``int8-fp32``,
which is our own arithmetic. ``int8-weights``: NNCF's weight compression; OpenVINO then rounds
activations when it runs, where it has a kernel for that.
"""

from __future__ import annotations

from pathlib import Path

import loop
import numpy as np

EXPORT = "../../optimum/fp32/model.onnx"
CALIBRATION_BATCHES = 64


def make(checkpoint: Path, folder: Path, precision: str) -> None:
    import nncf
    import openvino

    model = openvino.convert_model(folder / EXPORT)
    if precision in ("int8", "int8-fp32"):
        model = nncf.quantize(
            model,
            nncf.Dataset(random_inputs()),
            model_type=nncf.ModelType.TRANSFORMER,
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=CALIBRATION_BATCHES,
        )
    elif precision == "int8-weights":
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)


def random_inputs() -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(1)
    ids = generator.integers(4, 250_002, (CALIBRATION_BATCHES, 1, 64))
    return [{"input_ids": row, "attention_mask": np.ones_like(row)} for row in ids]


def load(folder: Path, precision: str, threads: int) -> loop.Predict:
    arithmetic = "f32" if precision.endswith("fp32") else ""
    return loop.peer.openvino_predict(folder / "model.xml", threads, arithmetic)


if __name__ == "__main__":
    loop.main(make, load)
