"""Bundles of all three graphs over tiny random encoders, and random batches for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from xlt_serve.bundle import Bundle
from xlt_serve.runtime.gpu.binding import BoundSession
from xlt_serve.runtime.gpu.buckets import Buckets, choose
from xlt_serve.runtime.onnx_file import Value
from xlt_serve.runtime.open_graph import described, io_of
from xlt_serve.runtime.session import Options
from xlt_serve.runtime.shapes import concrete, names

Feeds = dict[str, npt.NDArray[np.generic]]
KINDS = ("plain", "perturbed", "paired")


def make(
    encoder: Path,
    folder: Path,
    *,
    prompts: bool = False,
    at: str = "embeddings",
    precision: str = "fp32",
) -> Bundle:
    """A bundle with plain and perturbed graphs, and with paired ones unless it has prompts."""
    return make_each(encoder, {precision: folder}, prompts=prompts, at=at)[precision]


def make_each(
    encoder: Path, folders: Mapping[str, Path], *, prompts: bool = False, at: str = "embeddings"
) -> dict[str, Bundle]:
    """The same in several precisions, each in its folder: to trace takes long, to convert does not."""
    import torch
    from xlt_training.loop import model
    from xlt_training.methods.soft_prompt import SoftPrompt
    from xlt_training.methods.xmixup import XMixup

    from benchmarks import random_bundles

    torch.manual_seed(0)
    network = model.build(str(encoder), ["a", "b", "c"], 64)
    (SoftPrompt(length=5) if prompts else XMixup()).attach(network)
    # As after training: fresh biases are all zero, and equal tensors are merged into one.
    for parameter in network.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape)
    traced = random_bundles.traced(network, KINDS[:2] if prompts else KINDS, at)
    checks = {"lengths": {"histogram": {"5": 40, "17": 60, "30": 50, "61": 3}}}
    return {
        precision: random_bundles.write(
            network, folder, traced, name="toy", precision=precision, at=at, checks=checks
        )
        for precision, folder in folders.items()
    }


def feeds(
    inputs: dict[str, Value], sizes: dict[str, int], pad_id: int, generator: np.random.Generator
) -> Feeds:
    """Random ids, each row padded to a length of its own; random noise and rows."""
    out: Feeds = {}
    for name, value in inputs.items():
        shape = concrete(value.dims, sizes)
        if name.endswith("mask"):
            real = generator.integers(1, shape[1] + 1, shape[0])
            out[name] = (np.arange(shape[1]) < real[:, None]).astype(np.int64)
        elif name == "noise":
            out[name] = (0.1 * generator.normal(size=shape)).astype(np.float32)
        elif name == "row":
            out[name] = generator.integers(0, sizes["texts"], shape)
        else:
            out[name] = generator.integers(5, 100, shape) if name.endswith("_ids") else np.zeros(0)
            if name.endswith("type_ids"):
                out[name] = out[name] % 2
    for ids, mask in (("input_ids", "attention_mask"), ("source_ids", "source_mask")):
        if ids in out:
            out[ids] = np.where(out[mask] == 1, out[ids], pad_id)
    return out


def sizes(
    inputs: dict[str, Value], generator: np.random.Generator, most: int = 70
) -> dict[str, int]:
    """A random size for each of a graph's named dimensions."""
    found = names({name: value.dims for name, value in inputs.items()})
    return {name: int(generator.integers(1, 65 if "length" in name else most)) for name in found}


def bound(
    bundle: Bundle, graph: str, buckets: Buckets | None = None, sets: int = 64
) -> BoundSession:
    """A graph bound to buffers on the CPU."""
    found = described(bundle, graph)
    return BoundSession(
        bundle.file(f"{graph}.onnx"),
        Options(threads=1),
        inputs=found.inputs,
        outputs=found.outputs,
        buckets=buckets or choose({}, bundle.manifest.max_length, 1024),
        io=io_of(bundle, graph, found),
        sets=sets,
    )
