"""``xlt engine``: build a bundle's TensorRT engines on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from xlt_serve import bundle as bundles
from xlt_serve.cli import options as common
from xlt_serve.cli.parser import command, words
from xlt_serve.errors import DependencyError, UsageError


def add(commands: Any) -> None:
    sub = command(
        commands,
        "engine",
        run,
        "build a bundle's TensorRT engines on this machine's GPU",
        "Serving with provider tensorrt then starts in seconds instead of minutes. An engine is for\n"
        "one bundle, GPU, TensorRT and onnxruntime; another of these builds another engine.",
    )
    sub.add_argument("bundle", metavar="BUNDLE", help="shipped name or folder, fp16 or fp32")
    common.add_devices(sub)
    sub.add_argument(
        "--cache",
        type=Path,
        default=None,
        metavar="DIR",
        help="default: ~/.cache/xlt-serve/engines",
    )
    sub.add_argument(
        "--graphs", type=words, default=[], metavar="plain,perturbed,paired", help="default: all"
    )


def run(options: argparse.Namespace) -> None:
    from xlt_serve.runtime.gpu import engine
    from xlt_serve.runtime.session import Options

    bundle = bundles.load(options.bundle)
    graphs = options.graphs or list(bundle.manifest.graphs)
    engine.refuse_unfit(bundle, graphs)
    try:
        for device in common.devices_of(options.device, "tensorrt") or (0,):
            settings = Options(provider="tensorrt", device=device, cache=options.cache)
            for built in engine.build(bundle, graphs, settings):
                print(engine.report(built), flush=True)
    except DependencyError as error:  # to ask for engines without a GPU is a wrong call
        raise UsageError(error.value, error.rule, error.remedy) from None
