"""``xlt methods``: list the training methods."""

from __future__ import annotations

import argparse
from typing import Any

from xlt_serve.cli.parser import command, training_modules


def add(commands: Any) -> None:
    command(commands, "methods", run, "list the training methods, and what each does")


def run(_: argparse.Namespace) -> None:
    method, recipes, methods = training_modules("loop.method", "loop.recipes", "methods")
    for name, kind in methods.METHODS.items():
        print(f"{name:16}  {(kind.__doc__ or '').strip().splitlines()[0]}")
        # That it has an objective is no news: most have.
        if does := [trait.value for trait in method.Trait if trait in kind.traits]:
            print(f"{'':16}  {'; '.join(does)}")
    for name, stages in recipes.staged().items():
        print(f"{name:16}  In stages: {', then '.join('+'.join(stage) for stage in stages)}.")
    for name, of in recipes.variants().items():
        print(f"{name:16}  A variant of {of}.")
