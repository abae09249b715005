"""``xlt``: train, evaluate, export, predict, inspect, serve.

A command is a file with ``add(commands)``, which declares it, and ``run(options)``, which does it.
"""

from __future__ import annotations

import io
import os
import sys
from importlib import metadata

from xlt_serve.cli import (
    assess,
    bench,
    build,
    engines,
    evaluate,
    export,
    fisher,
    init,
    inspect,
    methods,
    predict,
    score,
    serve,
    sign,
    train,
    translate_files,
    translator,
)
from xlt_serve.cli.parser import Parser
from xlt_serve.errors import XltError

COMMANDS = (
    init,
    train,
    evaluate,
    assess,
    export,
    predict,
    score,
    bench,
    inspect,
    serve,
    build,
    sign,
    engines,
    fisher,
    translate_files,
    translator,
    methods,
)
"""In the order of the help."""


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 done, 1 failed, 2 wrong call."""
    parser = Parser(
        prog="xlt",
        description="Robust cross-lingual text classification, from training to serving.",
    )
    version = f"xlt-serve {metadata.version('xlt-serve')}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add(commands)
    options, rest = parser.parse_known_args(arguments)
    if hasattr(options, "take"):
        rest = options.take(options, rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        options.run(options)
    except XltError as error:
        print(f"xlt: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("xlt: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output is gone (`xlt predict … | head`): nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"xlt: {error.filename or 'system'}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0
