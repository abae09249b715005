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
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from xlt_serve.errors import DependencyError, UsageError
from xlt_serve.runtime.gpu.tensorrt import BELOW, LEAST

RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
LEAST_RUNTIME = (1, 25)
"""Of onnxruntime-gpu: the first whose CUDA provider has a kernel for all that we export, and that says
where it runs each node. Shown by tests/xlt_serve/runtime/gpu/test_placement.py."""

FOR_CUDA_12 = "onnxruntime-gpu[cuda,cudnn]>=1.25.1,<1.27"
"""Later wheels are for CUDA 13."""

DRIVERS = {12: "525 or later", 13: "580 or later"}
"""That know a major version of CUDA."""

Load = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Gpu:
    """``capability``: major.minor; ``uuid``: without the ``GPU-`` that NVML writes before it."""

    device: int
    capability: str
    name: str = ""
    uuid: str = ""


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
        require_version(ort)
        gpu(device, load)
        require_driver(ort, load)
        _load_packages(ort)
        require_cuda(ort, load)
    if name == "tensorrt":
        tensorrt_version(load)
    return PROVIDERS[name]


def require_version(ort: Any) -> None:
    version = tuple(int(part) for part in ort.__version__.split(".")[:2])
    if version < LEAST_RUNTIME:
        least = _dotted(LEAST_RUNTIME)
        raise DependencyError(
            f"onnxruntime-gpu {ort.__version__}",
            f"lacks kernels of our graphs, needed is >={least}",
            f"pip install 'onnxruntime-gpu[cuda,cudnn]>={least}'",
        )


def gpu(device: int, load: Load = ctypes.CDLL) -> Gpu:
    """The GPU with this number, asked of the driver itself."""
    if device < 0:
        raise UsageError(f"device={device}", "must be 0 or more")
    count, driver = gpus(load), load("libcuda.so.1")
    if device >= count:
        raise UsageError(f"device={device}", f"must be below {count}, the number of GPUs")
    handle, major, minor = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    driver.cuDeviceGet(ctypes.byref(handle), device)
    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, handle)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, handle)
    name, uuid = ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
    driver.cuDeviceGetName(name, 256, handle)
    driver.cuDeviceGetUuid(ctypes.byref(uuid), handle)
    capability = f"{major.value}.{minor.value}"
    return Gpu(
        device, capability, name.value.decode(errors="replace"), str(UUID(bytes=bytes(uuid)))
    )


def gpus(load: Load = ctypes.CDLL) -> int:
    """How many the driver shows to this process."""
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
    return count.value


def cuda_major(ort: Any) -> int:
    """The major version of CUDA that this onnxruntime was built for."""
    return int(str(getattr(ort, "cuda_version", "") or "12").split(".")[0])


def require_driver(ort: Any, load: Load = ctypes.CDLL) -> None:
    """Within a major version of CUDA any driver will do, an older one not."""
    major, version = cuda_major(ort), ctypes.c_int(0)
    load("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))  # 12040 is 12.4
    if version.value < 1000 * major:
        spoken = f"{version.value // 1000}.{version.value % 1000 // 10}"
        older = f", or pip install '{FOR_CUDA_12}'" if major > 12 <= version.value // 1000 else ""
        raise DependencyError(
            "the NVIDIA driver",
            f"knows CUDA {spoken} at most, onnxruntime {ort.__version__} is built for CUDA {major}",
            f"update it to {DRIVERS.get(major, 'a newer one')}{older}",
        )


def driver_version(file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """As the kernel's module says, also within a container; empty where it does not."""
    try:
        found = re.search(r"Module.*?\s(\d+\.\d[\d.]*)", file.read_text())
    except OSError:
        return ""
    return found[1] if found else ""


def require_cuda(ort: Any, load: Load = ctypes.CDLL) -> None:
    """The CUDA libraries of the major version that this onnxruntime was built for."""
    major = cuda_major(ort)
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
