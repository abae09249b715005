"""What the GPU did meanwhile: clocks, power, memory, temperature, and why it was slowed down."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from xlt_serve.errors import XltError
from xlt_serve.runtime.gpu.providers import Load, gpu

SLOWED = {0x4: "power cap", 0x8: "hardware", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
"""NVML's reasons for lower clocks that spoil a measurement."""


def driver() -> Any | None:
    """NVML, ready for use; None on a machine without a GPU or without nvidia-ml-py."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # its errors are many, and all mean that there is no NVML
        return None
    return nvml


def handle_of(nvml: Any, device: int, load: Load = ctypes.CDLL) -> Any:
    """By its identity: NVML counts all GPUs of the machine, the driver those of CUDA_VISIBLE_DEVICES."""
    try:
        uuid = gpu(device, load).uuid
    except (XltError, OSError, AttributeError):  # a GPU that only NVML can see
        return nvml.nvmlDeviceGetHandleByIndex(device)
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception:  # a slice of a GPU has an identity of its own
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def read(nvml: Any, handle: Any) -> dict[str, float]:
    """What this GPU can tell of itself; not every GPU can tell everything."""
    readings: dict[str, Callable[[], float]] = {
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "memory_mb": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / 1e6,
        "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "busy_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "slowed": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
    }
    out = {}
    for name, reading in readings.items():
        with contextlib.suppress(Exception):
            out[name] = float(reading())
    return out


@contextlib.contextmanager
def watched(device: int, every: float = 0.1, nvml: Any | None = None) -> Iterator[dict[str, Any]]:
    """A dict that is filled when the block ends; it stays empty where there is no GPU."""
    out: dict[str, Any] = {}
    nvml = nvml or driver()
    if nvml is None:
        yield out
        return
    handle = handle_of(nvml, device)
    seen: list[dict[str, float]] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.append(read(nvml, handle))
            stop.wait(every)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield out
    finally:
        stop.set()
        thread.join()
        out |= {"name": _text(nvml.nvmlDeviceGetName(handle)), "samples": len(seen)}
        out["driver"] = _text(nvml.nvmlSystemGetDriverVersion())
        out |= condensed(seen)


def condensed(seen: list[dict[str, float]]) -> dict[str, Any]:
    """Smallest, mean and largest of each, and the reasons for lower clocks that ever held."""
    out: dict[str, Any] = {}
    for name in sorted({name for sample in seen for name in sample} - {"slowed"}):
        values = [sample[name] for sample in seen if name in sample]
        mean = sum(values) / len(values)
        out[name] = {"min": min(values), "mean": round(mean, 2), "max": max(values)}
    bits = 0
    for sample in seen:
        bits |= int(sample.get("slowed", 0))
    out["slowed_by"] = sorted({why for bit, why in SLOWED.items() if bits & bit})
    return out


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
