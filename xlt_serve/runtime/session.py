"""A graph of a bundle, open in ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from xlt_serve.errors import BundleError, DependencyError, OutOfMemory, UsageError, first_line
from xlt_serve.runtime import onnx_file as onnxfile
from xlt_serve.runtime.gpu import memory, placement, providers
from xlt_serve.runtime.gpu.placement import Placed
from xlt_serve.runtime.shapes import Sizes, sizes_of


@dataclass(frozen=True, slots=True)
class Options:
    """``threads`` 0: all cores of this process; ``spin``: they wait for one another awake within a run,
    which saves up to a sixth of its time on cores of their own, and costs dearly on shared ones.
    The others are for GPUs: ``device``: its number; ``devices``: several, each run takes one that is free;
    ``memory`` bytes that onnxruntime may take of it, 0 for all; ``cuda_graphs``: replay a captured
    graph for each bucket; ``events``: time runs on the device's clock, for measuring;
    ``cache``: the folder of TensorRT engines, by default the user's."""

    threads: int = 0
    provider: str = "cpu"
    device: int = 0
    memory: int = 0
    cuda_graphs: bool = False
    cache: Path | None = None
    spin: bool = False
    events: bool = False
    devices: tuple[int, ...] = ()


def check(options: Options) -> None:
    """Raise a UsageError for the first option that is out of its range."""
    if options.threads < 0:
        raise UsageError(f"threads={options.threads}", "must be 0 (all cores) or more")
    if options.memory < 0:
        raise UsageError(f"memory={options.memory}", "must be 0 (no limit) or more bytes")
    if options.cuda_graphs and options.provider != "cuda":
        raise UsageError(
            f"provider={options.provider}", "has no CUDA graphs here", "use provider cuda for them"
        )


def cuda_options(options: Options) -> dict[str, str]:
    """What onnxruntime's CUDA provider is given."""
    out = {
        "device_id": str(options.device),
        # The default doubles what it holds with every new shape; memory should stay flat.
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",  # fp32 means fp32; who wants speed exports fp16
        "enable_cuda_graph": str(int(options.cuda_graphs)),
    }
    if options.memory:
        out["gpu_mem_limit"] = str(options.memory)
    return out


class Session:
    """Named arrays in, named arrays out. Runs may come from several threads."""

    def __init__(
        self,
        graph: Path,
        options: Options | None = None,
        provider_options: Mapping[str, str] | None = None,
    ) -> None:
        options = options or Options()
        check(options)
        ort = providers.runtime()
        provider = providers.require(ort, options.provider, options.device)
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = options.threads or available_cores()
        settings.inter_op_num_threads = 1
        if options.provider == "cpu":
            # It keeps a plan for every shape it has seen, which texts have hundreds of, and is not faster.
            settings.enable_mem_pattern = False
        settings.add_session_config_entry(
            "session.intra_op.allow_spinning", "1" if options.spin else "0"
        )
        # Between runs they would burn the cores that tokenising, HTTP and other workers need.
        settings.add_session_config_entry("session.force_spinning_stop", "1")
        # Errors are raised, and logged by whoever asked; written to standard error by a run thread they
        # would hold it up while nobody reads.
        settings.log_severity_level = 4
        if options.provider != "cpu":
            settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if provider_options is None:
            provider_options = cuda_options(options) if options.provider == "cuda" else {}
        try:
            self._session = ort.InferenceSession(
                str(graph),
                settings,
                providers=[(provider, dict(provider_options))],
                enable_fallback=0,  # else a failing run is quietly repeated on the CPU
            )
        except Exception as error:  # onnxruntime's errors share no base class but this
            if options.provider != "cpu" and memory.SAYS.search(str(error)):
                rule = f"needs more memory than GPU {options.device} has left"
                raise OutOfMemory(graph, rule, memory.ROOM) from None
            raise BundleError(
                graph, f"can't be opened by onnxruntime {ort.__version__} ({first_line(error)})"
            ) from None
        self.inputs = tuple(node.name for node in self._session.get_inputs())
        self.outputs = tuple(node.name for node in self._session.get_outputs())
        # The shape of each input: numbers where the graph fixes them, names elsewhere.
        self.dims = {node.name: tuple(node.shape) for node in self._session.get_inputs()}
        self.provider: str = self._session.get_providers()[0]
        if self.provider != provider:
            raise DependencyError(
                options.provider, f"was asked for, but onnxruntime gave {self.provider}"
            )
        if options.provider != "cpu":
            self._refuse_other_providers(graph, options.provider)

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        values = self._session.run(None, dict(feeds))
        return dict(zip(self.outputs, values, strict=True))

    def ran(self, feeds: Mapping[str, npt.NDArray[Any]]) -> list[Sizes]:
        """The sizes that these inputs run at: their own, but for a session with buckets."""
        return [sizes_of(self.dims, feeds)]

    def assigned(self) -> list[Placed]:
        """Where every node runs; on a CPU onnxruntime is not told to record it."""
        parts = self._session.get_provider_graph_assignment_info()
        return [Placed(p.ep_name, n.op_type, n.name) for p in parts for n in p.get_nodes()]

    def _refuse_other_providers(self, graph: Path, name: str) -> None:
        """TensorRT must take all of a graph, CUDA all but the arithmetic of shapes."""
        allowed: frozenset[tuple[str, str]] = frozenset()
        if name == "cuda":
            file = onnxfile.read(graph)
            allowed = placement.shape_arithmetic(file.nodes, file.constants)
        if wrong := placement.misplaced(self.assigned(), providers.PROVIDERS[name], allowed):
            shown = ", ".join(f"{count} {op}" for op, count in wrong.items())
            raise BundleError(
                graph,
                f"would run {shown} elsewhere than on {name}",
                "export it with --precision fp16 --tensorrt, or take another provider",
            )


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
