"""A session whose inputs and outputs stay on the device, in buffers that are used again.

A batch is padded up to the next bucket (``buckets``), copied into the buffers of that shape, run,
and its results cut back. On GPUs this saves an allocation and a copy for every run, and fixed
addresses are what CUDA graphs need. It computes the same on the CPU, where it is tested.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlt_serve import providers
from xlt_serve.buckets import Buckets
from xlt_serve.onnxfile import Value
from xlt_serve.session import Options, Session
from xlt_serve.shapes import Sizes, concrete, names, rounded, sizes_of

SETS = 64
"""Sets of buffers that are kept; the oldest goes first. Captured CUDA graphs are never let go."""

_IDS = ("input_ids", "source_ids")
_MASKS = ("attention_mask", "source_mask")
_TYPES = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16}

Feeds = Mapping[str, npt.NDArray[Any]]
Results = dict[str, npt.NDArray[Any]]


@dataclass(slots=True)
class _Buffers:
    """One shape: arrays to pad in, their twins on the device, and the binding between them."""

    host: Results
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
        pad_id: int,
        sets: int = SETS,
    ) -> None:
        super().__init__(graph, options, provider_options)
        self.buckets = buckets
        self.dims = {name: value.dims for name, value in inputs.items()}
        names(self.dims | {name: value.dims for name, value in outputs.items()})
        self._inputs, self._outputs, self._pad_id = inputs, outputs, pad_id
        self._device = ("cpu", 0) if options.provider == "cpu" else ("cuda", options.device)
        self._cuda_graphs, self._sets = options.cuda_graphs, sets
        self._buffers: dict[tuple[tuple[str, int], ...], _Buffers] = {}
        self._captured = 0
        self._turn = threading.Lock()

    def run(self, feeds: Feeds) -> Results:
        parts = [self._run(part) for part in self._parts(feeds)]
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.outputs}

    def _parts(self, feeds: Feeds) -> list[dict[str, npt.NDArray[Any]]]:
        """The batch in pieces that the largest bucket holds."""
        sizes = sizes_of(self.dims, feeds)
        # Draws belong to texts, so they are what a perturbed graph is split by.
        along = "draws" if "draws" in sizes else "batch"
        room = rounded(sizes, self.buckets)
        step = room[along]
        if sizes[along] <= step and all(sizes[name] <= room[name] for name in room):
            return [dict(feeds)]
        out = []
        for start in range(0, sizes[along], step):
            piece = {
                name: array[start : start + step] if self.dims[name][0] == along else array
                for name, array in feeds.items()
            }
            out.append(self._without_idle_texts(piece) if along == "draws" else piece)
        return out

    def _without_idle_texts(self, piece: dict[str, npt.NDArray[Any]]) -> Results:
        """Only the texts that some draw belongs to: never more than there are draws."""
        used, row = np.unique(piece["row"], return_inverse=True)
        texts = {
            name: array[used] if self.dims[name][0] == "texts" else array
            for name, array in piece.items()
        }
        return texts | {"row": row.astype(np.int64)}

    def _run(self, feeds: Results) -> Results:
        sizes = sizes_of(self.dims, feeds)
        shape = rounded(sizes, self.buckets)
        with self._turn:
            buffers = self._buffers_for(shape)
            for name, array in feeds.items():
                self._fill(name, buffers.host[name], array)
                buffers.inputs[name].update_inplace(buffers.host[name])
            buffers.binding.synchronize_inputs()
            self._session.run_with_iobinding(buffers.binding, buffers.settings)
            buffers.binding.synchronize_outputs()
            return {
                # A copy: the buffer is the next run's.
                name: np.array(buffers.outputs[name].numpy()[: sizes[str(value.dims[0])]])
                for name, value in self._outputs.items()
            }

    def _fill(self, name: str, host: npt.NDArray[Any], array: npt.NDArray[Any]) -> None:
        host[...] = self._pad_id if name in _IDS else 0
        host[tuple(slice(length) for length in array.shape)] = array
        if name in _MASKS:
            # A row that saw nothing would divide by a sum of nothing: it sees its first position.
            host[len(array) :, 0] = 1

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

        host: Results = {
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
        if self._cuda_graphs:
            self._captured += 1
            settings.add_run_config_entry("gpu_graph_id", str(self._captured))
        return _Buffers(host, inputs, outputs, binding, settings)


def example(inputs: Mapping[str, Value], sizes: Sizes, pad_id: int) -> Results:
    """Arrays of these sizes that a graph can run: for warm-up, building and timing."""
    out: Results = {}
    for name, value in inputs.items():
        filling = pad_id if name in _IDS else int(name in _MASKS)
        out[name] = np.full(concrete(value.dims, sizes), filling, dtype=_TYPES[value.type])
    if "row" in out:
        out["row"] = np.arange(sizes["draws"], dtype=np.int64) % sizes["texts"]
    return out
