"""What runs in an environment of onnxruntime-gpu, over the stub of CUDA: ``over_cuda_stub.py WHAT …``.

It prints JSON. Nothing of training is there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xlt_serve.errors import XltError
from xlt_serve.runtime.gpu import providers
from xlt_serve.runtime.session import Options, Session


def places(*files: str) -> dict[str, Any]:
    """Each graph: how many of its nodes each provider has, or why it was refused."""
    out: dict[str, Any] = {"version": providers.runtime().__version__}
    for file in files:
        try:
            found = [place.provider for place in Session(Path(file), CUDA).assigned()]
        except XltError as error:
            out[file] = str(error)
        else:
            out[file] = {provider: found.count(provider) for provider in set(found)}
    return out


CUDA = Options(threads=1, provider="cuda")
CALLS: dict[str, Callable[..., Any]] = {"places": places}

if __name__ == "__main__":
    print(json.dumps(CALLS[sys.argv[1]](*sys.argv[2:])))
