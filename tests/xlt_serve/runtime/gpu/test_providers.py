"""Refusals, with faked libraries and versions: the machine that breaks each rule is not at hand."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xlt_serve.errors import DependencyError, UsageError, XltError
from xlt_serve.runtime.gpu import providers

CUDA = ("libcuda.so.1", "libcudart.so.12", "libcublasLt.so.12", "libcudnn.so.9")
TENSORRT = ("libnvinfer.so.10", "libnvonnxparser.so.10")


class Library:
    """Answers as the CUDA driver and TensorRT do."""

    def __init__(
        self, gpus: int = 2, broken: int = 0, version: int = 101401, cuda: int = 12080
    ) -> None:
        self.gpus, self.broken, self.version, self.cuda = gpus, broken, version, cuda

    def cuDriverGetVersion(self, out: Any) -> int:
        out._obj.value = self.cuda
        return 0

    def cuDeviceGetName(self, out: Any, size: int, _: ctypes.c_int) -> int:
        out.value = b"NVIDIA L4"
        return 0

    def cuDeviceGetUuid(self, out: Any, handle: ctypes.c_int) -> int:
        out._obj[15] = handle.value
        return 0

    def cuInit(self, _: int) -> int:
        return self.broken

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.gpus
        return 0

    def cuDeviceGet(self, handle: Any, device: int) -> int:
        handle._obj.value = device
        return 0

    def cuDeviceGetAttribute(self, out: Any, attribute: int, _: ctypes.c_int) -> int:
        out._obj.value = {75: 8, 76: 6}[attribute]
        return 0

    def getInferLibVersion(self) -> int:
        return self.version


def loader(*there: str, library: Library | None = None) -> providers.Load:
    def load(name: str) -> Library:
        if name not in there:
            raise OSError(f"{name}: cannot open shared object file")
        return library or Library()

    return load


def ort(*given: str, version: str = "1.31.1", cuda: str = "12.8") -> Any:
    names = [providers.PROVIDERS[name] for name in given]
    return SimpleNamespace(
        __version__=version, cuda_version=cuda, get_available_providers=lambda: names
    )


def refusal(call: Any, *arguments: Any) -> XltError:
    with pytest.raises(XltError) as caught:
        call(*arguments)
    assert caught.value.rule
    assert caught.value.remedy
    return caught.value


def test_two_runtimes_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "_is_installed", lambda name: True)
    with pytest.raises(DependencyError, match=r"alternatives.*pip uninstall -y onnxruntime"):
        providers.runtime()


def test_no_runtime_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "_is_installed", lambda name: False)
    with pytest.raises(DependencyError, match=r"pip install 'xlt-serve\[serve\]'"):
        providers.runtime()


def test_a_machine_with_everything_passes() -> None:
    full, load = ort("cpu", "cuda", "tensorrt"), loader(*CUDA, *TENSORRT)
    for name, provider in providers.PROVIDERS.items():
        assert providers.require(full, name, 1, load) == provider
    found = providers.gpu(1, load)
    assert (found.device, found.capability, found.name) == (1, "8.6", "NVIDIA L4")
    assert providers.tensorrt_version(load) == "10.14.1"


def test_the_cpu_asks_for_no_library() -> None:
    assert providers.require(ort("cpu"), "cpu", 0, loader()) == "CPUExecutionProvider"


@pytest.mark.parametrize("name", ["cuda", "tensorrt"])
def test_a_runtime_without_the_provider(name: str) -> None:
    error = refusal(providers.require, ort("cpu"), name, 0, loader(*CUDA, *TENSORRT))
    assert str(error).startswith(f"{name}: is not in this onnxruntime (1.31.1); pip uninstall")


@pytest.mark.parametrize("missing", CUDA)
def test_each_cuda_library_that_is_missing(missing: str) -> None:
    load = loader(*(name for name in CUDA if name != missing))
    error = refusal(providers.require, ort("cuda"), "cuda", 0, load)
    assert error.value == missing
    assert "can't be loaded" in error.rule


@pytest.mark.parametrize("missing", TENSORRT)
def test_each_tensorrt_library_that_is_missing(missing: str) -> None:
    load = loader(*CUDA, *(name for name in TENSORRT if name != missing))
    error = refusal(providers.require, ort("tensorrt"), "tensorrt", 0, load)
    assert error.value == missing
    assert "TensorRT >=10.14,<11 is needed" in error.rule
    assert "pip install 'tensorrt>=10.14,<11'" in error.remedy


def test_tensorrt_11_alone_is_named() -> None:
    load = loader(*CUDA, "libnvinfer.so.11", "libnvonnxparser.so.11")
    error = refusal(providers.require, ort("tensorrt"), "tensorrt", 0, load)
    assert str(error).startswith("TensorRT 11: is installed, needed is >=10.14,<11; pip install")


@pytest.mark.parametrize("version", [101303, 110000, 80601])
def test_other_versions_behind_the_same_name(version: int) -> None:
    load = loader(*TENSORRT, library=Library(version=version))
    assert "needed is >=10.14,<11" in refusal(providers.tensorrt_version, load).rule


@pytest.mark.parametrize("version", [101400, 101401, 101600, 109999])
def test_versions_that_do(version: int) -> None:
    found = providers.tensorrt_version(loader(*TENSORRT, library=Library(version=version)))
    assert found.startswith("10.")


def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="device=2: must be below 2, the number of GPUs"):
        providers.gpu(2, loader(*CUDA))
    with pytest.raises(UsageError, match="device=-1: must be 0 or more"):
        providers.gpu(-1, loader(*CUDA))
    error = refusal(providers.gpu, 0, loader(*CUDA, library=Library(broken=100)))
    assert "finds no usable GPU" in error.rule


def test_the_machine_without_a_driver() -> None:
    """For real, where there is none."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        error = refusal(providers.gpu, 0)
        assert "no NVIDIA driver" in error.rule
        assert "provider cpu" in error.remedy
    else:
        pytest.skip("this machine has an NVIDIA driver")


@pytest.mark.parametrize(
    ("built_for", "driver", "remedy"),
    [
        (
            "13.0",
            12080,
            "update it to 580 or later, or pip install 'onnxruntime-gpu[cuda,cudnn]>=1.2",
        ),
        ("13.0", 11080, "update it to 580 or later"),
        ("12.8", 11080, "update it to 525 or later"),
    ],
)
def test_a_driver_that_is_too_old(built_for: str, driver: int, remedy: str) -> None:
    load = loader(*CUDA, library=Library(cuda=driver))
    error = refusal(providers.require, ort("cuda", cuda=built_for), "cuda", 0, load)
    assert error.value == "the NVIDIA driver"
    assert f"knows CUDA {driver // 1000}.8 at most" in error.rule
    assert error.remedy.startswith(remedy)
    assert ("pip" in error.remedy) == (driver > 12000)


def test_a_driver_of_the_same_major_version_will_do() -> None:
    load = loader(*CUDA, library=Library(cuda=12000))
    assert providers.require(ort("cuda"), "cuda", 0, load) == "CUDAExecutionProvider"


def test_a_runtime_without_kernels_of_ours() -> None:
    error = refusal(providers.require, ort("cuda", version="1.23.2"), "cuda", 0, loader(*CUDA))
    assert error.value == "onnxruntime-gpu 1.23.2"
    assert "pip install 'onnxruntime-gpu[cuda,cudnn]>=" in error.remedy


def test_the_drivers_version_is_that_of_the_kernel_module(tmp_path: Path) -> None:
    file = tmp_path / "version"
    for line in (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build",
    ):
        file.write_text(line + "\nGCC version:  12.2.0\n")
        assert providers.driver_version(file) == "550.54.15"
    assert providers.driver_version(tmp_path / "none") == ""
