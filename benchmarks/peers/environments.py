"""An environment of its own for each peer, under ``build/peers``: their pins exclude each other's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PEERS = ROOT / "build" / "peers"

# An open range of torch would draw in several GB of CUDA packages.
_TORCH = "torch==2.13.0"
# optimum-onnx 0.1.0 takes transformers < 4.58; CTranslate2's converter reads what 5.x dropped.
_TRANSFORMERS = "transformers==4.57.6"
REQUIREMENTS = {
    "optimum": [
        _TORCH,
        _TRANSFORMERS,
        "optimum-onnx[onnxruntime]==0.1.0",
        "onnxruntime==1.31.1",
        "onnx==1.23.2",
        "numpy==2.4.6",
    ],
    "openvino": ["openvino==2026.4.1", "nncf==3.4.0", "numpy==2.4.6"],
    "ctranslate2": [_TORCH, _TRANSFORMERS, "ctranslate2==4.8.4", "numpy==2.4.6"],
    # It takes numpy < 2, and imports BetterTransformer, which is for transformers < 4.49.
    "infinity": [
        _TORCH,
        "transformers==4.48.3",
        "infinity-emb[server,logging,torch,optimum]==0.0.78",
        "optimum[onnxruntime]==1.24.0",  # later ones refuse the path that infinity gives them
        "datasets==3.6.0",
        "pyarrow==20.0.0",
        "click<8.2",
    ],
}


class NotInstalled(Exception):
    """pip's own words on why."""


def python(name: str) -> Path:
    """The interpreter of an environment, which is made where it is not there or out of date."""
    folder = PEERS / name
    marker = folder / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS[name]) + "\n"
    interpreter = folder / "bin" / "python"
    if marker.is_file() and marker.read_text() == wanted:
        return interpreter
    _run(sys.executable, "-m", "venv", "--clear", str(folder))
    _run(str(interpreter), "-m", "pip", "install", "-q", *REQUIREMENTS[name])
    marker.write_text(wanted)
    return interpreter


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled(done.stderr.strip()[-500:])
