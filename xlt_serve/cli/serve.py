"""``xlt serve``: check what can be wrong, then hand over to BentoML."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from typing import Any

from xlt_serve.bundle import Bundle
from xlt_serve.cli import options as common
from xlt_serve.cli.parser import command
from xlt_serve.errors import UsageError, needed


def add(commands: Any) -> None:
    sub = command(
        commands,
        "serve",
        run,
        "serve bundles over HTTP",
        "example:\n  xlt serve --bundle topics --bundle nli=runs/nli-bundle --workers 2\n\n"
        "Limits, keys and logs are set by variables (XLT_API_KEYS, XLT_MAX_WAIT, …); see docs/serving.md.",
    )
    sub.add_argument(
        "--bundle",
        action="append",
        default=[],
        metavar="[NAME=]BUNDLE",
        help="shipped name or folder; may be repeated, the first is the default (default: all that ship)",
    )
    sub.add_argument("--host", default=None, help="address (default: XLT_HOST, else 127.0.0.1)")
    sub.add_argument("--port", type=int, default=3000)
    sub.add_argument(
        "--workers", type=int, default=None, help="processes (default: XLT_WORKERS, else 1)"
    )
    common.add_provider(sub, default=None, said="XLT_PROVIDER, else cpu")
    common.add_devices(sub, "XLT_DEVICE, else 0; a worker each")
    common.add_translators(sub)
    common.add_tables(sub, "tables of synonyms, before the bundles' own", "tables")
    sub.add_argument(
        "--threads",
        type=int,
        default=None,
        help="of each worker (default: XLT_THREADS, else cores / workers)",
    )
    sub.add_argument(
        "--trust-tokenizer",
        action="store_true",
        help="take regular expressions that no known tokenizer has (XLT_TRUST_TOKENIZER)",
    )
    common.add_signers(sub)


def run(options: argparse.Namespace) -> None:
    needed("bentoml", "xlt serve", "serve")
    environment = prepared(options)
    host = environment["XLT_HOST"]
    _refuse_taken(host, options.port)
    call = [sys.executable, "-m", "bentoml", "serve", "xlt_serve.service:XltService"]
    call += ["--host", host, "--port", str(options.port)]
    sys.stdout.flush()
    os.execve(sys.executable, call, environment)


def prepared(options: argparse.Namespace) -> dict[str, str]:
    """The environment of the service. What is wrong fails here, in one line, not again and again in
    a worker's log."""
    from xlt_serve import translation
    from xlt_serve.classifier import load
    from xlt_serve.runtime.session import available_cores
    from xlt_serve.serving import settings
    from xlt_serve.signing import key_files
    from xlt_serve.text import patterns, synonyms

    given = ",".join(options.bundle)
    wanted = settings.read(os.environ | ({"XLT_BUNDLES": given} if given else {}))
    provider = options.provider or wanted.provider
    devices = common.devices_of(options.device, provider) or wanted.devices
    told = options.workers is not None or os.environ.get("XLT_WORKERS")
    workers = wanted.workers if options.workers is None else options.workers
    if devices and not told:
        workers = len(devices)
    if workers < 1:
        raise UsageError(f"--workers {workers}", "must be at least 1")
    if not 1 <= options.port <= 65535:
        raise UsageError(f"--port {options.port}", "must be between 1 and 65535")
    tables = synonyms.files(options.tables)
    trust = options.trust_tokenizer or patterns.trusted()
    signed = options.require_signature or key_files.required_file()
    opened = {
        name: load(
            place, provider=provider, synonyms=tables, trust_tokenizer=trust, signed_by=signed
        ).bundle
        for name, place in wanted.bundles.items()
    }
    if options.translators is not None:
        translation.load(options.translators).close()
    if given:
        opened = called(opened, given)
    places = ",".join(f"{name}={bundle.path.absolute()}" for name, bundle in opened.items())
    threads = options.threads or wanted.threads or max(1, available_cores() // workers)
    return os.environ | {
        "XLT_BUNDLES": places,
        "XLT_HOST": options.host or wanted.host or "127.0.0.1",
        "XLT_PROVIDER": provider,
        **({"XLT_DEVICE": ",".join(map(str, devices))} if devices else {}),
        "XLT_WORKERS": str(workers),
        "XLT_THREADS": str(threads),
        **({"XLT_TRANSLATORS": str(options.translators.absolute())} if options.translators else {}),
        **({patterns.TRUST: "1"} if trust else {}),
        **({key_files.REQUIRED: str(signed.absolute())} if signed else {}),
        **({"XLT_SYNONYMS": settings.joined(tables)} if tables else {}),
        "BENTOML_DO_NOT_TRACK": "true",  # "1" would be read as false
    }


def called(opened: dict[str, Bundle], given: str) -> dict[str, Bundle]:
    """Bundles by the names that were given; where none was, each is called what its manifest says."""
    names = [bundle.manifest.name for bundle in opened.values()]
    if "=" in given or len(set(names)) < len(names):
        return opened
    return dict(zip(names, opened.values(), strict=True))


def _refuse_taken(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"{host}:{port}",
                f"can't be listened on ({error.strerror})",
                "give another --port",
            ) from None
