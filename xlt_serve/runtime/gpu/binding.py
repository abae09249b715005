"""A session whose inputs and outputs stay on the device, in buffers that are used again.

A batch is padded up to the next bucket (``buckets``), copied into the buffers of that shape, run,
and its results cut back. On GPUs this saves an allocation and a copy for every run, and fixed
addresses are what CUDA graphs need. It computes the same on the CPU, where it is tested.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlt_serve.runtime.gpu import memory, providers
from xlt_serve.runtime.gpu.buckets import Buckets
from xlt_serve.runtime.gpu.events import Events
from xlt_serve.runtime.graph_io import Feeds, GraphIO
from xlt_serve.runtime.onnx_file import Value
from xlt_serve.runtime.session import Options, Session, cuda_options
from xlt_serve.runtime.shapes import Sizes, concrete, names, rounded, sizes_of
from xlt_serve.runtime.steps import Outputs

SETS = 64
"""Sets of buffers that are kept; the oldest goes first. Captured CUDA graphs are never let go."""

_TYPES = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16}


@dataclass(frozen=True, slots=True)
class Phases:
    """Milliseconds of a run: copies to the device, the run, copies back, on the host's clock;
    ``device``: from its first kernel to its last on the device's own, None where no events are kept."""

    copy_in: float
    run: float
    copy_out: float
    device: float | None


@dataclass(slots=True)
class _Buffers:
    """One shape: arrays to pad in, their twins on the device, and the binding between them."""

    host: Feeds
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    binding: Any
    settings: Any


class BoundSession(Session):
    """``run`` as in Session, for the graphs of a bundle; threads wait for one another."""

    def __init__(
        self,
        graph: Path,
        options: Options,
        provider_options: Mapping[str, str] | None = None,
        *,
        inputs: Mapping[str, Value],
        outputs: Mapping[str, Value],
        buckets: Buckets,
        io: GraphIO[Any],
        sets: int = SETS,
    ) -> None:
        self._events: Events | None = None
        if options.events and options.provider != "cpu":
            self._events = Events(providers.runtime(), options.device)
            given = cuda_options(options) if provider_options is None else provider_options
            provider_options = {**given, "user_compute_stream": self._events.stream}
        super().__init__(graph, options, provider_options)
        self.phases: Phases | None = None
        self.buckets = buckets
        self.dims = {name: value.dims for name, value in inputs.items()}
        names(self.dims | {name: value.dims for name, value in outputs.items()})
        self._inputs, self._outputs, self._io = inputs, outputs, io
        self._device = ("cpu", 0) if options.provider == "cpu" else ("cuda", options.device)
        self._cuda_graphs, self._sets = options.cuda_graphs, sets
        self._buffers: dict[tuple[tuple[str, int], ...], _Buffers] = {}
        self._captured = 0
        self._turn = threading.Lock()

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> Outputs:
        parts = [self._run(part) for part in self._parts(dict(feeds))]
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.outputs}

    def ran(self, feeds: Mapping[str, npt.NDArray[Any]]) -> list[Sizes]:
        return [
            rounded(sizes_of(self.dims, part), self.buckets) for part in self._parts(dict(feeds))
        ]

    def _parts(self, feeds: Feeds) -> list[Feeds]:
        """The batch in pieces that the largest bucket holds."""
        sizes = sizes_of(self.dims, feeds)
        room = rounded(sizes, self.buckets)
        if all(sizes[name] <= room[name] for name in room):
            return [feeds]
        return self._io.parts(feeds, room[self._io.rows])

    def _run(self, feeds: Feeds) -> Outputs:
        sizes = sizes_of(self.dims, feeds)
        shape = rounded(sizes, self.buckets)
        with self._turn, memory.told(shape, self._device[1]):
            buffers = self._buffers_for(shape)
            moments = [time.perf_counter()]
            for name, array in feeds.items():
                self._io.fill(name, buffers.host[name], array)
                buffers.inputs[name].update_inplace(buffers.host[name])
            buffers.binding.synchronize_inputs()
            moments.append(time.perf_counter())
            device = self._launch(buffers)
            moments.append(time.perf_counter())
            out = {
                # A copy: the buffer is the next run's.
                name: np.array(buffers.outputs[name].numpy()[: sizes[str(value.dims[0])]])
                for name, value in self._outputs.items()
            }
            moments.append(time.perf_counter())
            into, run, back = (1000 * (b - a) for a, b in pairwise(moments))
            self.phases = Phases(into, run, back, device)
            return out

    def _launch(self, buffers: _Buffers) -> float | None:
        """Run, and wait for the end of it; milliseconds by events, where there are some."""
        if self._events is not None:
            self._events.begin()
        self._session.run_with_iobinding(buffers.binding, buffers.settings)
        device = self._events.end() if self._events is not None else None
        buffers.binding.synchronize_outputs()
        return device

    def _buffers_for(self, sizes: Sizes) -> _Buffers:
        key = tuple(sorted(sizes.items()))
        if key not in self._buffers:
            if len(self._buffers) >= self._sets and not self._cuda_graphs:
                del self._buffers[next(iter(self._buffers))]
            self._buffers[key] = self._allocate(sizes)
        return self._buffers[key]

    def _allocate(self, sizes: Sizes) -> _Buffers:
        ort = providers.runtime()

        def on_device(value: Value) -> Any:
            shape = list(concrete(value.dims, sizes))
            return ort.OrtValue.ortvalue_from_shape_and_type(
                shape, _TYPES[value.type], *self._device
            )

        host: Feeds = {
            name: np.zeros(concrete(value.dims, sizes), dtype=_TYPES[value.type])
            for name, value in self._inputs.items()
        }
        inputs = {name: on_device(value) for name, value in self._inputs.items()}
        outputs = {name: on_device(value) for name, value in self._outputs.items()}
        binding = self._session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value)
        settings = ort.RunOptions()
        if self._events is not None:
            # Else the second event is recorded only after the host has woken up.
            settings.add_run_config_entry("disable_synchronize_execution_providers", "1")
        if self._cuda_graphs:
            self._captured += 1
            settings.add_run_config_entry("gpu_graph_id", str(self._captured))
        return _Buffers(host, inputs, outputs, binding, settings)
