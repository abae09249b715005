"""A graph of a bundle, open in ONNX Runtime."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlt_serve.errors import BundleError, DependencyError, UsageError

RUNTIMES = ("onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True, slots=True)
class Options:
    """``threads`` 0: all cores of this process."""

    threads: int = 0
    provider: str = "cpu"


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


class Session:
    """Named arrays in, named arrays out. Runs may come from several threads."""

    def __init__(self, graph: Path, options: Options | None = None) -> None:
        options = options or Options()
        if options.threads < 0:
            raise UsageError(f"threads={options.threads}", "must be 0 (all cores) or more")
        ort = runtime()
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = options.threads or available_cores()
        settings.inter_op_num_threads = 1
        # Spinning threads burn the cores that tokenising, HTTP and other workers need.
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        settings.log_severity_level = 3
        provider = _provider(ort, options.provider)
        try:
            self._session = ort.InferenceSession(str(graph), settings, providers=[provider])
        except Exception as error:  # onnxruntime's errors share no base class but this
            raise BundleError(
                graph, f"can't be opened by onnxruntime {ort.__version__} ({_first_line(error)})"
            ) from None
        self.inputs = tuple(node.name for node in self._session.get_inputs())
        self.outputs = tuple(node.name for node in self._session.get_outputs())
        # The last dimension of each output, a number where the graph fixes it.
        self.widths = {node.name: node.shape[-1] for node in self._session.get_outputs()}
        self.provider: str = self._session.get_providers()[0]
        if self.provider != provider:
            raise DependencyError(
                options.provider, f"was asked for, but onnxruntime gave {self.provider}"
            )

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        values = self._session.run(None, dict(feeds))
        return dict(zip(self.outputs, values, strict=True))


def pad(rows: list[list[int]], value: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """ids [rows, longest] filled up with ``value``, and their mask: 1 for real, 0 for padding."""
    longest = max(len(row) for row in rows)
    ids = np.full((len(rows), longest), value, dtype=np.int64)
    mask = np.zeros((len(rows), longest), dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return ids, mask


def available_cores() -> int:
    """Cores that this process may use: a container's share, not the machine's."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def _provider(ort: Any, name: str) -> str:
    known = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
    if name not in known:
        raise DependencyError(name, f"is not a provider; known: {', '.join(known)}")
    if known[name] not in ort.get_available_providers():
        raise DependencyError(
            name,
            f"is not in this onnxruntime ({ort.__version__})",
            "pip uninstall -y onnxruntime && pip install 'xlt-serve[gpu]' on a machine with CUDA",
        )
    return known[name]


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
