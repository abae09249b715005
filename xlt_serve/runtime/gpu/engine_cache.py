"""Engines on disk: one process builds at a time, and what it built appears whole or not at all."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from xlt_serve.runtime.gpu.tensorrt import EngineCache

TIMING = "*.timing"
"""What TensorRT measured of its kernels: later builds are faster by it."""


@contextlib.contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Wait until no other process builds: workers would build the same, and builds that run side by
    side measure each other. A process that dies gives its turn up."""
    import fcntl  # of Linux, as are CUDA's wheels

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def building(cache: EngineCache) -> Iterator[EngineCache]:
    """The same cache in a folder of its own. When the block ends well, its files move over, the
    context last, since it is what a later start looks for."""
    with tempfile.TemporaryDirectory(dir=cache.folder, prefix=".building-") as scratch:
        here = replace(cache, folder=Path(scratch))
        for timing in cache.folder.glob(TIMING):
            shutil.copy(timing, scratch)
        yield here
        for file in sorted(Path(scratch).iterdir(), key=lambda file: file == here.context):
            file.replace(cache.folder / file.name)
