"""``xlt serve``: check what can be wrong, then hand over to BentoML."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from typing import Any

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
        "Limits, keys and logs are set by variables (XLT_API_KEYS, XLT_MAX_WAIT, …); see the README.",
    )
    sub.add_argument(
        "--bundle",
        action="append",
        default=[],
        metavar="[NAME=]BUNDLE",
        help="shipped name or folder; may be repeated, the first is the default (default: all that ship)",
    )
    sub.add_argument("--host", default="127.0.0.1")
    sub.add_argument("--port", type=int, default=3000)
    sub.add_argument(
        "--workers", type=int, default=None, help="processes (default: XLT_WORKERS, else 1)"
    )
    common.add_provider(sub, default=None, said="XLT_PROVIDER, else cpu")
    common.add_translators(sub)
    common.add_tables(sub, "tables of synonyms, before the bundles' own", "tables")
    sub.add_argument(
        "--threads",
        type=int,
        default=None,
        help="of each worker (default: XLT_THREADS, else cores / workers)",
    )


def run(options: argparse.Namespace) -> None:
    needed("bentoml", "xlt serve", "serve")
    environment = prepared(options)
    _refuse_taken(options.host, options.port)
    call = [sys.executable, "-m", "bentoml", "serve", "xlt_serve.service:XltService"]
    call += ["--host", options.host, "--port", str(options.port)]
    sys.stdout.flush()
    os.execve(sys.executable, call, environment)


def prepared(options: argparse.Namespace) -> dict[str, str]:
    """The environment of the service. What is wrong fails here, in one line, not again and again in
    a worker's log."""
    from xlt_serve import translation
    from xlt_serve.classifier import load
    from xlt_serve.runtime.session import available_cores
    from xlt_serve.serving import settings
    from xlt_serve.text import synonyms

    given = ",".join(options.bundle)
    wanted = settings.read(os.environ | ({"XLT_BUNDLES": given} if given else {}))
    workers = wanted.workers if options.workers is None else options.workers
    provider = options.provider or wanted.provider
    if workers < 1:
        raise UsageError(f"--workers {workers}", "must be at least 1")
    if not 1 <= options.port <= 65535:
        raise UsageError(f"--port {options.port}", "must be between 1 and 65535")
    tables = synonyms.files(options.tables)
    opened = {
        name: load(place, provider=provider, synonyms=tables).bundle
        for name, place in wanted.bundles.items()
    }
    if options.translators is not None:
        translation.load(options.translators).close()
    if given and "=" not in given:  # a bundle alone is called what its manifest calls it
        names = [bundle.manifest.name for bundle in opened.values()]
        if len(set(names)) == len(names):
            opened = dict(zip(names, opened.values(), strict=True))
    places = ",".join(f"{name}={bundle.path.absolute()}" for name, bundle in opened.items())
    threads = options.threads or wanted.threads or max(1, available_cores() // workers)
    return os.environ | {
        "XLT_BUNDLES": places,
        "XLT_PROVIDER": provider,
        "XLT_WORKERS": str(workers),
        "XLT_THREADS": str(threads),
        **({"XLT_TRANSLATORS": str(options.translators.absolute())} if options.translators else {}),
        **({"XLT_SYNONYMS": settings.joined(tables)} if tables else {}),
        "BENTOML_DO_NOT_TRACK": "true",  # "1" would be read as false
    }


def _refuse_taken(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"{host}:{port}",
                f"can't be listened on ({error.strerror})",
                "give another --port",
            ) from None
