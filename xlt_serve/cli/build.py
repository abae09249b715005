"""``xlt build``: bundles to ship, as a bento, an image and a deployment."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from xlt_serve import bundle as bundles
from xlt_serve.cli import options as common
from xlt_serve.cli.parser import command
from xlt_serve.cli.serve import called
from xlt_serve.errors import needed

EXAMPLES = """examples:
  xlt build topics                                  # build/xlt-serve, and a bento
  xlt build reviews=runs/reviews-bundle topics --image registry.example.org/xlt --containerize
  xlt build runs/big-fp16 --gpu --volume --require-signature release.pub --out ship

The folder has a Dockerfile, kubernetes.yaml with an autoscaler, the rule of the Prometheus adapter for it,
a bentofile, and all that they name. The version is made of the content."""


def add(commands: Any) -> None:
    sub = command(
        commands, "build", run, "make a bento, an image and a deployment of bundles", EXAMPLES
    )
    sub.add_argument("bundle", nargs="+", metavar="[NAME=]BUNDLE", help="the first is the default")
    sub.add_argument("--gpu", action="store_true", help="for CUDA")
    place = sub.add_mutually_exclusive_group()
    place.add_argument("--inside", action="store_true", help="bundles in the image (default)")
    place.add_argument("--volume", action="store_true", help="bundles on a volume, at /bundles")
    sub.add_argument("--image", default="", metavar="NAME", help="of the image, without tag")
    sub.add_argument("--containerize", action="store_true", help="also build the image")
    sub.add_argument(
        "--base-digest", default="", metavar="sha256:…", help="the very base image to begin with"
    )
    common.add_signers(sub)
    sub.add_argument("--out", type=Path, default=None, metavar="DIR", help="default: build/NAME")


def run(options: argparse.Namespace) -> None:
    needed("bentoml", "xlt build", "serve")
    from xlt_serve.deploy import bento, build_folder, output
    from xlt_serve.serving import settings
    from xlt_serve.signing import key_files

    bento.refuse_without_uv()
    given = ",".join(options.bundle)
    signed = options.require_signature or key_files.required_file()
    signers = key_files.read_public(signed) if signed is not None else None
    found = {name: bundles.load(at, signers) for name, at in settings.named(given).items()}
    shipment = build_folder.Shipment(
        called(found, given), options.gpu, options.volume, options.image, signed
    )
    bento.check_digest(options.base_digest)
    build_folder.check(shipment)
    out = options.out or Path("build") / shipment.bento
    with output.replacing(out) as half:
        version = build_folder.write(shipment, half)
        tag = bento.build(half, shipment.bento, version)
        versions = {name: one.manifest.version for name, one in shipment.bundles.items()}
        output.write_receipt(half, {"tag": tag, "bundles": versions})
    image = f"{shipment.image or shipment.bento}:{version}"
    print(f"bento:  {tag} (bentoml serve {tag})")
    print(f"folder: {out} ({bento.command(out, image, options.base_digest)})")
    if options.containerize:
        backend = bento.containerize(out.resolve(), image, options.base_digest)
        print(f"image:  {image}, by {backend}")
