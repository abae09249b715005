"""Open a graph of a bundle on the provider asked for, and make sure that it is what it claims."""

from __future__ import annotations

from typing import Any

from xlt_serve.bundle import Bundle
from xlt_serve.errors import BundleError, UsageError
from xlt_serve.runtime import onnx_file as onnxfile
from xlt_serve.runtime.gpu import buckets as bucketing
from xlt_serve.runtime.gpu import providers, tensorrt
from xlt_serve.runtime.gpu.binding import BoundSession
from xlt_serve.runtime.gpu.buckets import Buckets
from xlt_serve.runtime.gpu.tensorrt import EngineCache, Profile
from xlt_serve.runtime.graph_io import GRAPHS, GraphIO
from xlt_serve.runtime.onnx_file import OnnxFile
from xlt_serve.runtime.session import Options, Session


def open_graph(bundle: Bundle, graph: str, options: Options | None, budget: int) -> Session:
    """On the CPU a plain session; on GPUs one bound to buffers of the bundle's buckets."""
    options = options or Options()
    found = described(bundle, graph)
    file = bundle.file(bundle.manifest.graphs[graph].file)
    if options.provider == "cpu":
        return Session(file, options)
    buckets = buckets_of(bundle, budget)
    provider_options = None
    if options.provider == "tensorrt":
        tensorrt.require_precision(bundle, graph)
        chosen, cache = engine_of(bundle, graph, options, buckets)
        provider_options = tensorrt.options(
            chosen, cache, device=options.device, workspace=options.memory
        )
        cache.folder.mkdir(parents=True, exist_ok=True)
        if cache.context.is_file():
            file, provider_options = cache.context, tensorrt.reopened(provider_options)
    try:
        return BoundSession(
            file,
            options,
            provider_options,
            inputs=found.inputs,
            outputs=found.outputs,
            buckets=buckets,
            io=io_of(bundle, graph, found),
        )
    except BundleError as error:
        if file.parent == bundle.path:
            raise
        raise BundleError(file, error.rule, f"delete it and run xlt engine {bundle.path}") from None


def described(bundle: Bundle, graph: str) -> OnnxFile:
    """What the graph's file says of itself, after comparing it with the manifest."""
    if graph not in bundle.manifest.graphs:
        raise UsageError(
            f"graph {graph}", f"is none of the bundle's: {', '.join(bundle.manifest.graphs)}"
        )
    entry = bundle.manifest.graphs[graph]
    found = onnxfile.read(bundle.file(entry.file))
    if found.precision != entry.precision:
        raise BundleError(
            bundle.file(entry.file),
            f"holds {found.precision} weights, the manifest says {entry.precision}",
            "export the bundle again",
        )
    return found


def io_of(bundle: Bundle, graph: str, found: OnnxFile) -> GraphIO[Any]:
    """The class of a graph, over the shapes that its file gives."""
    dims = {name: value.dims for name, value in found.inputs.items()}
    return GRAPHS[graph](dims, bundle.manifest.pad_id)


def buckets_of(bundle: Bundle, budget: int) -> Buckets:
    """From the lengths that export measured, else doubling up to the model's longest."""
    lengths = bucketing.measured(bundle.manifest.checks, bundle.path)
    return bucketing.choose(lengths, bundle.manifest.max_length, budget)


def engine_of(
    bundle: Bundle, graph: str, options: Options, buckets: Buckets
) -> tuple[Profile, EngineCache]:
    """The profile of a graph and where its engine belongs on this machine."""
    found = described(bundle, graph)
    chosen = tensorrt.profile({name: value.dims for name, value in found.inputs.items()}, buckets)
    folder = options.cache or tensorrt.default_cache()
    return chosen, tensorrt.cache_for(folder, bundle, graph, chosen, machine(options.device))


def machine(device: int) -> str:
    """What an engine depends on besides its graph: onnxruntime, TensorRT and the kind of GPU."""
    ort = providers.runtime()
    providers.require(ort, "tensorrt", device)
    capability = providers.gpu(device).capability
    return (
        f"onnxruntime {ort.__version__}, TensorRT {providers.tensorrt_version()}, sm {capability}"
    )
