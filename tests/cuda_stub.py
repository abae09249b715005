"""A CUDA runtime without a GPU, to load the real provider of onnxruntime-gpu: placement and control
flow, never numbers. See ``cuda_stub.c``.

The wheel lies in an environment of its own, since it and ``onnxruntime`` overwrite each other:
``XLT_GPU_ENVIRONMENTS`` is a folder of them, one a version, or they are made in build/gpu-environments.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

SOURCE = Path(__file__).with_suffix(".c")
OLDEST, NEWEST = "1.25.1", "1.31.1"
"""The versions of onnxruntime-gpu that are tried: the lowest of pyproject.toml, and that of the lock."""

BELONGS = re.compile(
    r"lib(cudart|cublas|cublasLt|cudnn|cufft|curand|cuda|nvinfer|nvonnxparser)\.so"
)
UNVERSIONED = {
    "libcuda.so.1": "cu[A-Z]",
    "libnvonnxparser.so.10": "createNvOnnx",
    "libnvinfer.so.10": "createInfer|getInfer|getPluginRegistry",
}
NEEDS = ("numpy", "tokenizers", "py3langid", "tqdm")


def environment(version: str) -> Path:
    """The interpreter of an environment with this wheel; skipped where it can't be had."""
    folder = Path(os.environ.get("XLT_GPU_ENVIRONMENTS") or ROOT / "build" / "gpu-environments")
    python = folder / version / "bin" / "python"
    if not (folder / version / "installed").exists():
        shutil.rmtree(folder / version, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder / version], check=True)
        wanted = [f"onnxruntime-gpu=={version}", *NEEDS]
        done = subprocess.run(
            [python, "-m", "pip", "install", "-q", "--retries", "0", *wanted],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(
                f"onnxruntime-gpu {version} can't be installed: {done.stderr.strip()[-300:]}"
            )
        (folder / version / "installed").touch()
    return python


def build(version: str, folder: Path) -> Path:
    """The libraries that the providers of this wheel ask for, in ``folder``."""
    if missing := [tool for tool in ("gcc", "readelf") if shutil.which(tool) is None]:
        pytest.skip(f"{missing[0]} is not there: the stub of CUDA's libraries can't be built")
    (capi,) = environment(version).parent.parent.glob("lib/python*/site-packages/onnxruntime/capi")
    for library, symbols in asked(capi).items():
        compile_stub(library, symbols, folder)
    return folder


def asked(capi: Path) -> dict[str, set[str]]:
    """Library → symbols, of both providers; some symbols don't say which library they are of."""
    out: dict[str, set[str]] = {"libcuda.so.1": set(), "libcudnn.so.9": set()}
    for name in ("cuda", "tensorrt"):
        file = capi / f"libonnxruntime_providers_{name}.so"
        for needed in re.findall(r"NEEDED.*\[(.*)\]", _readelf("-d", file)):
            if BELONGS.match(needed):
                out.setdefault(needed, set())
        for symbol, library in re.findall(r" UND (\w+)@(\S+)", _readelf("--dyn-syms", file)):
            if BELONGS.match(library):
                out.setdefault(library, set()).add(symbol)
        for symbol in re.findall(
            r" UND (\w+)(?: \(\d+\))?$", _readelf("--dyn-syms", file), re.MULTILINE
        ):
            for library, pattern in UNVERSIONED.items():
                if re.match(pattern, symbol):
                    out.setdefault(library, set()).add(symbol)
    return out


def compile_stub(library: str, symbols: set[str], folder: Path) -> None:
    """One library: what the source defines, and 0 for all else."""
    source = SOURCE.read_text()
    defined = set(re.findall(r"^EXPORT [\w ]+[ *]+(\w+)\(", source, re.MULTILINE))
    rest = "\n".join(f"EXPORT int {name}(void) {{ return 0; }}" for name in symbols - defined)
    file, versions = folder / f"{library}.c", folder / f"{library}.map"
    file.write_text(f"{source}\n{rest}\n")
    versions.write_text(f"{library} {{ global: *; }};\n")
    call = [
        "gcc",
        "-shared",
        "-fPIC",
        "-w",
        "-O1",
        "-fvisibility=hidden",
        "-o",
        folder / library,
        file,
    ]
    call += [f"-Wl,-soname,{library}", f"-Wl,--version-script={versions}"]
    subprocess.run(call, check=True)


def _readelf(what: str, file: Path) -> str:
    return subprocess.run(
        ["readelf", "-W", what, file], capture_output=True, text=True, check=True
    ).stdout


def run(
    version: str, libraries: Path, what: str, *given: object, more: Mapping[str, str] | None = None
) -> Any:
    """What ``over_cuda_stub.py`` answers in the environment of a version."""
    variables = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("XLT_", "CUDA_", "PYTEST"))
    }
    variables |= {
        "LD_LIBRARY_PATH": str(libraries),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        **(more or {}),
    }
    done = subprocess.run(
        [environment(version), "-m", "tests.over_cuda_stub", what, *map(str, given)],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
