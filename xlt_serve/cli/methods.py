"""``xlt methods``: list the training methods."""

from __future__ import annotations

import argparse
from typing import Any

from xlt_serve.cli.parser import command, training_modules


def add(commands: Any) -> None:
    command(commands, "methods", run, "list the training methods")


def run(_: argparse.Namespace) -> None:
    (methods,) = training_modules("methods")
    for name, kind in methods.METHODS.items():
        print(f"{name:16}  {(kind.__doc__ or '').strip().splitlines()[0]}")
