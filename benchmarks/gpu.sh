#!/usr/bin/env bash
# The whole proof on a machine with an NVIDIA GPU, in one command:
#   benchmarks/gpu.sh [CHECKPOINT [DATA]]
# CHECKPOINT: a trained checkpoint or an encoder's folder, by default the encoder that ships: latency needs
# no training. DATA: the folder of a checkpoint's data, by default that of training.
# It installs into .venv-gpu, exports, builds engines, measures, and only then runs the tests. A part that
# fails is written down, and the others go on. What to send back is benchmarks/results/gpu/gpu.html and
# gpu.json, which are written anew after each part. See docs/gpu.md for DEVICE, GPU_DEVICE and the rest.
set -uo pipefail

usage() { echo "gpu.sh: $1" >&2; exit 2; }

[ $# -le 2 ] || usage "takes a checkpoint and perhaps a data folder; see the top of $0"
for folder in "$@"; do
  [ -d "$folder" ] || usage "$folder: is no folder; make a checkpoint with xlt train … --out DIR, or give none"
done
if [ "${DEVICE:-cuda}" != cpu ] && ! command -v nvidia-smi >/dev/null; then
  usage "nvidia-smi: is not there; run this on a machine with an NVIDIA GPU, or rehearse with DEVICE=cpu"
fi
# Standard library only: a report is written even where nothing can be installed.
exec "${PYTHON:-python3}" "$(dirname "$0")/gpu_hour.py" "$@"
