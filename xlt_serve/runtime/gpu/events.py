"""How long a run takes on the device's own clock: two events on the stream that the session runs on."""

from __future__ import annotations

import ctypes
from typing import Any

from xlt_serve.errors import DependencyError
from xlt_serve.runtime.gpu.providers import Load, cuda_major


class Events:
    """A stream for one session, which is given it as ``stream``, and an event before and after a run.

    onnxruntime has a stream of its own otherwise, and an event on another one would time another work.
    """

    def __init__(self, ort: Any, device: int, load: Load = ctypes.CDLL) -> None:
        self._cuda = load(f"libcudart.so.{cuda_major(ort)}")
        self._ask("cudaSetDevice", device)
        self._stream, self._begin, self._end = (ctypes.c_void_p() for _ in range(3))
        self._ask("cudaStreamCreateWithFlags", ctypes.byref(self._stream), 1)  # non-blocking
        self._ask("cudaEventCreate", ctypes.byref(self._begin))
        self._ask("cudaEventCreate", ctypes.byref(self._end))

    @property
    def stream(self) -> str:
        return str(self._stream.value or 0)

    def begin(self) -> None:
        self._ask("cudaEventRecord", self._begin, self._stream)

    def end(self) -> float:
        """Milliseconds since ``begin``, once all that was asked for in between is done."""
        elapsed = ctypes.c_float()
        self._ask("cudaEventRecord", self._end, self._stream)
        self._ask("cudaEventSynchronize", self._end)
        self._ask("cudaEventElapsedTime", ctypes.byref(elapsed), self._begin, self._end)
        return elapsed.value

    def _ask(self, name: str, *given: Any) -> None:
        if code := getattr(self._cuda, name)(*given):
            raise DependencyError(name, f"failed with {code}", "see nvidia-smi")
