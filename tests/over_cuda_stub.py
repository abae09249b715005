"""What runs in an environment of onnxruntime-gpu, over the stub of CUDA: ``python -m tests.over_cuda_stub WHAT …``.

It prints JSON. Nothing of training is there.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from xlt_serve import bundle as bundles
from xlt_serve.classifier import Classifier
from xlt_serve.errors import OutOfMemory, XltError
from xlt_serve.runtime.gpu import providers
from xlt_serve.runtime.gpu.binding import BoundSession
from xlt_serve.runtime.gpu.devices import Spread
from xlt_serve.runtime.open_graph import described, io_of, open_graph
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


def road(folder: str) -> dict[str, Any]:
    """Each graph bound to buffers: what it ran as, what was copied, that its parts were timed."""
    bundle, out = bundles.load(folder), {}
    for graph in bundle.manifest.graphs:
        session = open_graph(bundle, graph, replace(CUDA, events=True), BUDGET)
        assert isinstance(session, BoundSession)
        io = io_of(bundle, graph, described(bundle, graph))
        before, shapes = counted(), {}
        for rows, length in ((1, 3), (3, 20), (3, 20), (200, 20)):
            feeds = io.example(io.sizes(rows, length))
            answer = session.run(feeds)
            shapes[f"{rows} x {length}"] = session.ran(feeds)
            assert {len(values) for values in answer.values()} == {rows}
        assert session.phases is not None
        out[graph] = {
            "ran": shapes,
            "buffers": len(session._buffers),
            "inputs": len(session.inputs),
            "device_ms": session.phases.device,
            **{name: now - before[name] for name, now in counted().items()},
        }
    return out


def captured(folder: str, *graphs: str) -> dict[str, Any]:
    """The same shapes again and again with CUDA graphs."""
    bundle, out = bundles.load(folder), {}
    for graph in graphs or bundle.manifest.graphs:
        session = open_graph(bundle, graph, replace(CUDA, cuda_graphs=True), BUDGET)
        io = io_of(bundle, graph, described(bundle, graph))
        before = counted()
        for _ in range(6):
            for rows, length in ((1, 3), (3, 20)):
                session.run(io.example(io.sizes(rows, length)))
        out[graph] = {name: now - before[name] for name, now in counted().items()}
    return out


def crowded(folder: str) -> str:
    """A batch that the GPU has no room for."""
    bundle = bundles.load(folder)
    session = open_graph(bundle, "plain", CUDA, 1 << 20)
    io = io_of(bundle, "plain", described(bundle, "plain"))
    try:
        session.run(io.example(io.sizes(60, 60)))
    except OutOfMemory as error:
        return str(error)
    return "it ran"


def spread(folder: str) -> dict[str, Any]:
    """A classifier over two GPUs, asked from several threads."""
    options = replace(CUDA, devices=(0, 1))
    classifier = Classifier(bundles.load(folder), options, BUDGET)
    session = classifier.runners.of("plain").session
    assert isinstance(session, Spread)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: classifier.predict(["goal"] * n), range(1, 9)))
    return {
        "answers": [len(answer) for answer in answers],
        "buffers": [len(one._buffers) for one in session.sessions],  # type: ignore[attr-defined]
    }


def refusal(folder: str, device: str) -> str:
    """What is said of a bundle on a device."""
    try:
        options = replace(CUDA, device=int(device))
        open_graph(bundles.load(folder), "plain", options, BUDGET)
    except XltError as error:
        return str(error)
    return "opened"


def counted() -> dict[str, int]:
    """What the stub has been asked for so far."""
    library = ctypes.CDLL(f"libcudart.so.{providers.cuda_major(providers.runtime())}")
    names = ("to_device", "to_host", "on_device", "launches", "captures", "replays", "synchronised")
    library.xlt_stub_count.restype = ctypes.c_long
    return {name: library.xlt_stub_count(kind) for kind, name in enumerate(names)}


CUDA, BUDGET = Options(threads=1, provider="cuda"), 1024
CALLS: dict[str, Callable[..., Any]] = {
    call.__name__: call for call in (places, road, captured, crowded, spread, refusal)
}

if __name__ == "__main__":
    print(json.dumps(CALLS[sys.argv[1]](*sys.argv[2:])))
