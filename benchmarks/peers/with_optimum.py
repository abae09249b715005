"""optimum's export as it stands, and its own dynamic int8 for processors with AVX512-VNNI."""

from __future__ import annotations

from pathlib import Path

import loop
import with_onnxruntime


def make(checkpoint: Path, folder: Path, precision: str) -> None:
    from optimum.exporters.onnx import main_export
    from optimum.onnxruntime import ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    main_export(str(checkpoint), folder, task="text-classification", do_validation=False)
    if precision == "int8":
        quantizer = ORTQuantizer.from_pretrained(folder, file_name="model.onnx")
        settings = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
        quantizer.quantize(save_dir=folder, quantization_config=settings, file_suffix="int8")
        (folder / "model.onnx").unlink()


def load(folder: Path, precision: str, threads: int) -> loop.Predict:
    name = "model.onnx" if precision == "fp32" else "model_int8.onnx"
    return with_onnxruntime.load(folder / name, threads)


if __name__ == "__main__":
    loop.main(make, load)
