"""What the commands' files build on: how a command is declared, and how training is imported."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any, NoReturn

from xlt_serve.errors import DependencyError


class Parser(argparse.ArgumentParser):
    """An error is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], None],
    about: str,
    more: str = "",
    description: str = "",
) -> argparse.ArgumentParser:
    """``about`` is its line in ``xlt --help`` and, as a sentence, its description; ``more`` is what
    its own help ends with."""
    sub: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=description or f"{about[0].upper()}{about[1:]}.",
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.set_defaults(run=run)
    return sub


def words(text: str) -> list[str]:
    """The value of an option that takes several, separated by commas."""
    return [part for part in text.split(",") if part]


def training_modules(*names: str) -> list[Any]:
    """Modules of ``xlt_training``, whose packages serving does without."""
    try:
        return [importlib.import_module(f"xlt_training.{name}") for name in names]
    except ModuleNotFoundError as error:
        raise DependencyError(
            error.name or "xlt_training",
            "is needed for training and not installed",
            "pip install 'xlt-serve[train]'",
        ) from None
