"""Where it was measured: what a reader needs to judge a number, and nothing that names the host."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from xlt_serve.runtime.session import available_cores

PACKAGES = (
    "xlt-serve",
    "onnxruntime",
    "onnxruntime-gpu",
    "tokenizers",
    "numpy",
    "bentoml",
    "tensorrt",
    "torch",
    "transformers",
)


def machine() -> dict[str, Any]:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {
        "processor": processor(),
        "cores": available_cores(),
        "memory_gb": memory(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "governor": _line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "load_before": round(load, 2),
        "packages": versions(),
    }


def warnings(found: dict[str, Any]) -> list[str]:
    """What on this machine may spoil the numbers."""
    out = []
    if found["load_before"] > 0.5 * found["cores"]:
        out.append(
            f"the machine was busy (load {found['load_before']} on {found['cores']} cores): "
            "latencies hold other people's work, too"
        )
    if found["governor"] not in ("", "performance"):
        out.append(f"the processor's clock follows the load (governor {found['governor']})")
    return out


def processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def memory() -> float:
    with contextlib.suppress(OSError, ValueError):
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return round(pages * size / 1e9, 1)
    return 0.0


def versions() -> dict[str, str]:
    out = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            out[name] = importlib.metadata.version(name)
    return out


def _line(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except OSError:
        return ""
