"""onnxruntime's transformers optimizer on optimum's export, then onnxruntime's quantize_dynamic."""

from __future__ import annotations

from pathlib import Path

import loop
import with_onnxruntime

OPSET = 17  # graphs of this age are what the optimizer knows


def make(checkpoint: Path, folder: Path, precision: str) -> None:
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from optimum.exporters.onnx import onnx_export_from_model
    from transformers import AutoModelForSequenceClassification

    # Eager attention: the optimizer's fusion looks for a MatMul, a Softmax and a MatMul.
    model = AutoModelForSequenceClassification.from_pretrained(
        checkpoint, attn_implementation="eager"
    )
    onnx_export_from_model(
        model, folder, opset=OPSET, task="text-classification", do_validation=False
    )
    optimised = optimize_model(
        str(folder / "model.onnx"),
        model_type="bert",
        num_heads=model.config.num_attention_heads,
        hidden_size=model.config.hidden_size,
        opt_level=1,
    )
    print(optimised.get_fused_operator_statistics())
    optimised.save_model_to_file(str(folder / "fp32.onnx"), use_external_data_format=True)
    (folder / "model.onnx").unlink()
    if precision == "int8":
        quantize_dynamic(
            folder / "fp32.onnx",
            folder / "int8.onnx",
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": TensorProto.FLOAT},
            use_external_data_format=True,
        )


def load(folder: Path, precision: str, threads: int) -> loop.Predict:
    return with_onnxruntime.load(folder / f"{precision}.onnx", threads)


if __name__ == "__main__":
    loop.main(make, load)
