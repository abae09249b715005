"""What a GPU without memory says, in one sentence: which batch it was, and what to lower."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from xlt_serve.errors import OutOfMemory

SAYS = re.compile(
    r"failed to allocate memory|out of memory|ALLOC_FAILED|cudaErrorMemoryAllocation|BFCArena",
    re.IGNORECASE,
)
"""In the errors of onnxruntime's arena, of CUDA, of its libraries and of TensorRT."""

ROOM = "make room: nvidia-smi shows who holds its memory"
LOWER = f"lower XLT_BUDGET (budget= in Python), or {ROOM}"


@contextlib.contextmanager
def told(sizes: Mapping[str, int], device: int) -> Iterator[None]:
    """An error within it that is for want of memory says so; any other stays as it is."""
    try:
        yield
    except Exception as error:  # onnxruntime's errors share no base class but this
        if SAYS.search(str(error)) is None:
            raise
        shape = ", ".join(f"{name} {number}" for name, number in sizes.items())
        raise OutOfMemory(
            f"a run of {shape}", f"needs more memory than GPU {device} has left", LOWER
        ) from None
