#!/usr/bin/env bash
# The whole proof on a machine with an NVIDIA GPU, in one command:
#   benchmarks/gpu.sh CHECKPOINT [DATA]
# CHECKPOINT: a trained checkpoint, for instance of `xlt train --task sib200 encoder=small
# --out runs/topics`; DATA: the folder of the task's data, by default that of training.
# It installs into .venv-gpu, exports to fp16, builds engines, runs the GPU tests and the latency grid,
# and writes benchmarks/results/gpu.json and gpu.md. GPU_DEVICE (0) is the GPU, PYTHON the interpreter.
set -euo pipefail

usage() { echo "gpu.sh: $1" >&2; exit 2; }

[ $# -ge 1 ] && [ $# -le 2 ] || usage "needs a checkpoint and perhaps a data folder; see the top of $0"
[ -d "$1" ] || usage "$1: is no checkpoint folder; make one with xlt train … --out DIR"
checkpoint=$(realpath "$1")
data=${2:+$(realpath "$2")}
device=${GPU_DEVICE:-0}
cd "$(dirname "$0")/.."

command -v nvidia-smi >/dev/null || usage "nvidia-smi: is not there; run this on a machine with an NVIDIA GPU"
nvidia-smi -i "$device" --query-gpu=name,driver_version,compute_cap --format=csv,noheader \
  || usage "GPU $device: nvidia-smi does not find it; set GPU_DEVICE"

venv=.venv-gpu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "== install"
"${PYTHON:-python3}" -m venv "$venv"
pip() { "$venv/bin/pip" --disable-pip-version-check "$@"; }
pip install -q -e xlt_serve/models -e '.[dev]' -e '.[gpu]' polygraphy onnx-graphsurgeon
# Training brings the CPU's onnxruntime, and the two overwrite each other: only one may stay.
pip uninstall -q -y onnxruntime onnxruntime-gpu
pip install -q 'onnxruntime-gpu[cuda,cudnn]>=1.23'
cuda=$("$venv/bin/python" -c 'import onnxruntime; print(onnxruntime.cuda_version.split(".")[0])')
pip install -q "tensorrt-cu$cuda>=10.14,<11"

echo "== providers"
"$venv/bin/python" - "$device" <<'PYTHON'
import sys
from xlt_serve import providers
from xlt_serve.errors import XltError
from xlt_serve.graphs import machine

try:
    for name in ("cpu", "cuda", "tensorrt"):
        print(name, providers.require(providers.runtime(), name, int(sys.argv[1])))
    print(machine(int(sys.argv[1])))
except XltError as error:
    sys.exit(f"gpu.sh: {error}")
PYTHON

echo "== export"
"$venv/bin/xlt" export "$checkpoint" --out "$work/bundle" --precision fp16 --tensorrt ${data:+--data "$data"}

echo "== engines"
"$venv/bin/xlt" engine "$work/bundle" --device "$device" --cache "$work/engines"

echo "== tests"
XLT_REQUIRE_GPU=1 "$venv/bin/pytest" -m gpu

echo "== latency"
"$venv/bin/python" -m benchmarks.gpu "$work/bundle" --device "$device" --cache "$work/engines"
echo "report: benchmarks/results/gpu.md"
