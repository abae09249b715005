from __future__ import annotations

import pytest

from xlt_serve.errors import OutOfMemory
from xlt_serve.runtime.gpu.memory import told


@pytest.mark.parametrize(
    "said",
    [
        "bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 1073741824",
        "CUDA failure 2: out of memory ; GPU=0",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
    ],
)
def test_the_batch_is_named_and_what_to_lower(said: str) -> None:
    with pytest.raises(OutOfMemory) as caught, told({"batch": 64, "length": 128}, 1):
        raise RuntimeError(said)
    assert str(caught.value) == (
        "a run of batch 64, length 128: needs more memory than GPU 1 has left; lower XLT_BUDGET "
        "(budget= in Python), or make room: nvidia-smi shows who holds its memory"
    )


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="illegal address"), told({"batch": 1}, 0):
        raise RuntimeError("CUDA failure 700: an illegal address was read")
