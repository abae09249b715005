"""Options of onnxruntime's TensorRT provider, made from a bundle. Pure functions.

- One profile for all buckets. The provider parses several but always runs the first
  (onnxruntime #31624), so the one must span from the least shape to the largest.
- fp16 is never switched on here: the graph's own types decide. Without the switches for fp16, int8
  and bf16 nothing else can, and TensorRT 11 has dropped them.
- The cache is named by a hash of all that an engine depends on: onnxruntime's own name does not
  see the profile or another bundle with the same file name.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from xlt_serve.bundle import MANIFEST, Bundle, digest
from xlt_serve.errors import BundleError
from xlt_serve.runtime.gpu.buckets import Buckets
from xlt_serve.runtime.shapes import Dims, Sizes, concrete, corners

LEAST, BELOW = (10, 14), (11, 0)
"""TensorRT versions: 10.14 is the first to parse Attention, onnxruntime-gpu links libnvinfer.so.10."""

PRECISIONS = ("fp32", "fp16")


@dataclass(frozen=True, slots=True)
class Profile:
    """``input:1x16,…`` thrice, as the provider reads it: the least, commonest and largest shapes."""

    least: str
    common: str
    largest: str


@dataclass(frozen=True, slots=True)
class EngineCache:
    """Where the engine of one graph lies; ``context`` is the file that a later start opens."""

    folder: Path
    prefix: str

    @property
    def context(self) -> Path:
        return self.folder / f"{self.prefix}_ctx.onnx"

    def files(self) -> list[Path]:
        """The engine, its profile and its context, as far as they are there."""
        return sorted(file for file in self.folder.glob(f"{self.prefix}*") if file.is_file())


def profile(dims: Dims, buckets: Buckets) -> Profile:
    """For every input with a named dimension, and no other; it spans all buckets."""
    dynamic = {
        name: shape for name, shape in dims.items() if any(isinstance(d, str) for d in shape)
    }
    return Profile(*(_shapes(dynamic, sizes) for sizes in corners(dims, buckets)))


def _shapes(dims: Dims, sizes: Sizes) -> str:
    return ",".join(
        f"{name}:{'x'.join(map(str, concrete(shape, sizes)))}" for name, shape in dims.items()
    )


def cache_for(
    folder: Path, bundle: Bundle, graph: str, chosen: Profile, machine: str = ""
) -> EngineCache:
    """``machine``: the versions and the GPU, since an engine runs on no other."""
    described = {
        "bundle": [bundle.manifest.version, digest(bundle.file(MANIFEST))],
        "graph": graph,
        "precision": bundle.manifest.graphs[graph].precision,
        "profile": [chosen.least, chosen.common, chosen.largest],
        "machine": machine,
    }
    content = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]
    return EngineCache(folder, f"{graph}-{bundle.manifest.graphs[graph].precision}-{content}")


def options(
    chosen: Profile, cache: EngineCache, *, device: int = 0, workspace: int = 0, level: int = 3
) -> dict[str, str]:
    """What the provider is given. ``workspace``: bytes, 0 for all that the GPU has."""
    out = {
        "device_id": str(device),
        "trt_profile_min_shapes": chosen.least,
        "trt_profile_opt_shapes": chosen.common,
        "trt_profile_max_shapes": chosen.largest,
        "trt_engine_cache_enable": "1",
        # Relative to the context file: with one, the provider refuses absolute paths.
        "trt_engine_cache_path": ".",
        "trt_engine_cache_prefix": cache.prefix,
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(cache.folder.absolute()),
        "trt_builder_optimization_level": str(level),
        # Acts on TensorRT's own fp16 only; our fp16 graphs hold their norms in fp32 themselves.
        "trt_layer_norm_fp32_fallback": "1",
        "trt_dump_ep_context_model": "1",
        "trt_ep_context_file_path": str(cache.context.absolute()),
        # The engine beside the context file, not in it: loads faster and is not held twice.
        "trt_ep_context_embed_mode": "0",
    }
    if workspace:
        out["trt_max_workspace_size"] = str(workspace)
    return out


def reopened(given: dict[str, str]) -> dict[str, str]:
    """The options for opening a context file: the same, but nothing is written again."""
    writing = ("trt_dump_ep_context_model", "trt_ep_context_file_path", "trt_ep_context_embed_mode")
    return {key: value for key, value in given.items() if key not in writing}


def require_precision(bundle: Bundle, graph: str) -> None:
    precision = bundle.manifest.graphs[graph].precision
    if precision not in PRECISIONS:
        raise BundleError(
            bundle.path,
            f"its {graph} graph is {precision}, which TensorRT does not take",
            "export it with --precision fp16 --tensorrt",
        )


def default_cache() -> Path:
    """A folder of this user's; engines are large and only good on one machine."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "xlt-serve" / "engines"
