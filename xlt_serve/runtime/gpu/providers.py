"""What may run a graph on this machine: onnxruntime, its providers, and the libraries they load.

onnxruntime answers a missing library with a warning and the CPU. Everything is therefore asked
beforehand, and what is missing is said in one line with its remedy.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xlt_serve.errors import DependencyError, UsageError
from xlt_serve.runtime.gpu.tensorrt import BELOW, LEAST

RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
Load = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Gpu:
    """``capability``: major.minor; engines are built for one."""

    device: int
    capability: str


def runtime() -> Any:
    """The onnxruntime module, after making sure that exactly one distribution provides it."""
    installed = [name for name in RUNTIMES if _is_installed(name)]
    if not installed:
        raise DependencyError(
            "onnxruntime",
            "is not installed",
            "pip install 'xlt-serve[serve]' (CPU) or 'xlt-serve[gpu]' (CUDA)",
        )
    if len(installed) > 1:
        raise DependencyError(
            " and ".join(installed),
            "are alternatives that overwrite each other",
            "pip uninstall -y onnxruntime onnxruntime-gpu, then install one of them",
        )
    import onnxruntime

    return onnxruntime


def require(ort: Any, name: str, device: int = 0, load: Load = ctypes.CDLL) -> str:
    """onnxruntime's name for a provider that can run here; anything in its way is an error."""
    if name not in PROVIDERS:
        raise DependencyError(name, f"is not a provider; known: {', '.join(PROVIDERS)}")
    if PROVIDERS[name] not in ort.get_available_providers():
        raise DependencyError(
            name,
            f"is not in this onnxruntime ({ort.__version__})",
            "pip uninstall -y onnxruntime && pip install 'xlt-serve[gpu]' on a machine with CUDA",
        )
    if name != "cpu":
        gpu(device, load)
        _load_packages(ort)
        require_cuda(ort, load)
    if name == "tensorrt":
        tensorrt_version(load)
    return PROVIDERS[name]


def gpu(device: int, load: Load = ctypes.CDLL) -> Gpu:
    """The GPU with this number, asked of the driver itself."""
    if device < 0:
        raise UsageError(f"device={device}", "must be 0 or more")
    driver = _loaded(load, "libcuda.so.1")
    if driver is None:
        raise DependencyError(
            "libcuda.so.1",
            "can't be loaded: this machine has no NVIDIA driver",
            "run on a machine with a GPU, or with provider cpu",
        )
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        raise DependencyError(
            "libcuda.so.1", "finds no usable GPU", "see nvidia-smi, or run with provider cpu"
        )
    if device >= count.value:
        raise UsageError(f"device={device}", f"must be below {count.value}, the number of GPUs")
    handle, major, minor = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    driver.cuDeviceGet(ctypes.byref(handle), device)
    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, handle)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, handle)
    return Gpu(device, f"{major.value}.{minor.value}")


def require_cuda(ort: Any, load: Load = ctypes.CDLL) -> None:
    """The CUDA libraries of the major version that this onnxruntime was built for."""
    major = str(getattr(ort, "cuda_version", "") or "12").split(".")[0]
    for library in (f"libcudart.so.{major}", f"libcublasLt.so.{major}", "libcudnn.so.9"):
        if _loaded(load, library) is None:
            raise DependencyError(
                library,
                f"can't be loaded, onnxruntime {ort.__version__} is built for CUDA {major}",
                "pip install 'onnxruntime-gpu[cuda,cudnn]', or put its folder on LD_LIBRARY_PATH",
            )


def tensorrt_version(load: Load = ctypes.CDLL) -> str:
    """TensorRT's version, if it is one that onnxruntime links and that parses our graphs."""
    wanted = f">={_dotted(LEAST)},<{BELOW[0]}"
    remedy = f"pip install 'tensorrt{wanted}', or put its folder on LD_LIBRARY_PATH"
    library = _loaded(load, "libnvinfer.so.10")
    if library is None and _loaded(load, "libnvinfer.so.11"):
        raise DependencyError("TensorRT 11", f"is installed, needed is {wanted}", remedy)
    for name, found in (
        ("libnvinfer.so.10", library),
        ("libnvonnxparser.so.10", _loaded(load, "libnvonnxparser.so.10")),
    ):
        if found is None:
            raise DependencyError(name, f"can't be loaded, TensorRT {wanted} is needed", remedy)
    assert library is not None
    number = int(library.getInferLibVersion())  # 101401 is 10.14.1
    version = (number // 10000, number // 100 % 100)
    if not LEAST <= version < BELOW:
        raise DependencyError(
            f"TensorRT {_dotted(version)}", f"is installed, needed is {wanted}", remedy
        )
    return f"{_dotted(version)}.{number % 100}"


def _loaded(load: Load, library: str) -> Any | None:
    try:
        return load(library)
    except OSError:
        return None


def _load_packages(ort: Any) -> None:
    """CUDA and TensorRT may come as Python packages, whose libraries are on no search path."""
    # Standard output is for predictions; what onnxruntime prints there goes beside it.
    with contextlib.redirect_stdout(sys.stderr):
        if hasattr(ort, "preload_dlls"):
            ort.preload_dlls()
        if importlib.util.find_spec("tensorrt_libs"):
            importlib.import_module("tensorrt_libs")


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
