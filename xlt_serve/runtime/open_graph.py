"""Open a graph of a bundle on the provider asked for, and make sure that it is what it claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from xlt_serve.bundle import MANIFEST, Bundle
from xlt_serve.errors import BundleAltered, BundleError, UsageError
from xlt_serve.runtime import onnx_file as onnxfile
from xlt_serve.runtime.gpu import buckets as bucketing
from xlt_serve.runtime.gpu import engine_cache, providers, tensorrt
from xlt_serve.runtime.gpu.binding import BoundSession
from xlt_serve.runtime.gpu.buckets import Buckets
from xlt_serve.runtime.gpu.devices import Spread
from xlt_serve.runtime.gpu.tensorrt import EngineCache, Profile
from xlt_serve.runtime.graph_io import GRAPHS, NOISE, GraphIO, PerturbedIO
from xlt_serve.runtime.onnx_file import OnnxFile
from xlt_serve.runtime.session import Options, Session


def open_graph(bundle: Bundle, graph: str, options: Options | None, budget: int) -> Session:
    """On the CPU a plain session; on GPUs one bound to buffers of the bundle's buckets, on each."""
    options = options or Options()
    if options.provider != "cpu" and len(options.devices) > 1:
        each = [replace(options, device=device, devices=()) for device in options.devices]
        return Spread([open_on_one(bundle, graph, one, budget) for one in each])
    if options.devices:
        options = replace(options, device=options.devices[0], devices=())
    return open_on_one(bundle, graph, options, budget)


def open_on_one(bundle: Bundle, graph: str, options: Options, budget: int) -> Session:
    found = described(bundle, graph)
    file = bundle.file(bundle.manifest.graphs[graph].file)
    if options.provider == "cpu":
        return Session(file, options)
    buckets = buckets_of(bundle, budget)
    io = io_of(bundle, graph, found)

    def opened(file: Path, given: Mapping[str, str] | None = None) -> BoundSession:
        return BoundSession(
            file,
            options,
            given,
            inputs=found.inputs,
            outputs=found.outputs,
            buckets=buckets,
            io=io,
        )

    if options.provider == "cuda":
        return opened(file)
    tensorrt.require_precision(bundle, graph)
    chosen, cache = engine_of(bundle, graph, options, buckets)
    given = partial(tensorrt.options, chosen, device=options.device, workspace=options.memory)
    if not cache.context.is_file():
        with engine_cache.turn(cache.folder):
            if not cache.context.is_file():  # else another process has just built it
                with engine_cache.building(cache) as here:
                    opened(file, given(here))
    try:
        # Also what has just been built: as every later start opens it.
        return opened(cache.context, tensorrt.reopened(given(cache)))
    except BundleError as error:
        remedy = f"delete it and run xlt engine {bundle.path}"
        raise BundleError(cache.context, error.rule, remedy) from None


def described(bundle: Bundle, graph: str) -> OnnxFile:
    """What the graph's file says of itself, after comparing it with the manifest."""
    if graph not in bundle.manifest.graphs:
        raise UsageError(
            f"graph {graph}", f"is none of the bundle's: {', '.join(bundle.manifest.graphs)}"
        )
    entry = bundle.manifest.graphs[graph]
    found = onnxfile.read(bundle.file(entry.file))
    # Weights of an unknown kind say nothing but that their rounding is unknown, which matters to votes.
    unknown = found.precision == onnxfile.MIXED and graph != "perturbed"
    if found.precision != entry.precision and not unknown:
        raise BundleError(
            bundle.file(entry.file),
            f"holds {found.precision} weights, the manifest says {entry.precision}",
            "export the bundle again",
        )
    refuse_unhashed(bundle, entry.file, found)
    refuse_unfit(bundle, graph, found)
    return found


def refuse_unfit(bundle: Bundle, graph: str, found: OnnxFile) -> None:
    """It gives as many logits as there are labels, and takes noise where the manifest says. A width
    that the file leaves open is looked at after each run."""
    manifest, file = bundle.manifest, bundle.file(bundle.manifest.graphs[graph].file)
    for name in GRAPHS[graph].logits:
        dims = found.outputs[name].dims if name in found.outputs else (f"no {name}",)
        width = dims[-1] if dims else "?"
        absent = name not in found.outputs
        if absent or (isinstance(width, int) and width != len(manifest.labels)):
            labels = len(manifest.labels)
            raise BundleError(file, f"gives {width} for {labels} labels", "export it again")
    if graph != PerturbedIO.name:
        return
    if NOISE not in found.inputs or len(found.inputs[NOISE].dims) not in (2, 3):
        raise BundleError(file, "takes no noise", "export it again")
    takes = "embeddings" if len(found.inputs[NOISE].dims) == 3 else "encoder"
    if (says := manifest.noise.get("at", "embeddings")) != takes:
        raise BundleError(
            file, f"adds noise at the {takes}, the manifest says {says}", "export it again"
        )


def refuse_unhashed(bundle: Bundle, graph_file: str, found: OnnxFile) -> None:
    """Whatever the graph reads is a file of the bundle with a hash, and as long as it must be."""
    file = bundle.file(graph_file)
    if "EPContext" in found.operators:
        raise BundleError(
            file, "holds a compiled engine, which may read any file", "export the bundle again"
        )
    for external in found.external:
        name = str(PurePosixPath(graph_file).parent / external.location)
        if name not in bundle.manifest.files:
            raise BundleAltered(
                file,
                f"reads {external.location[:200]!r}, which has no sha256 in {MANIFEST}",
                "export the bundle again",
            )
        size = bundle.file(name).stat().st_size
        if max(external.start, external.end or 0) > size:
            raise BundleAltered(
                file,
                f"reads {name} up to byte {external.end or external.start}, it has {size}",
                "export the bundle again",
            )


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
    """What an engine depends on besides its graph: versions, and the GPU, whose siblings of the same
    architecture it may suit badly."""
    ort = providers.runtime()
    providers.require(ort, "tensorrt", device)
    gpu = providers.gpu(device)
    return (
        f"onnxruntime {ort.__version__}, TensorRT {providers.tensorrt_version()}, {gpu.name}, "
        f"sm {gpu.capability}, driver {providers.driver_version()}"
    )
