"""Every error of the project: what was given, which rule it breaks, and what to do about it.

XltError
├── UsageError           a wrong call: command line, option, request (exit code 2)
│   └── ConfigError      every problem of a training config at once
├── BundleError          a bundle that can't be served
│   ├── BundleNotFound
│   ├── BundleAltered    a file is missing or its hash differs
│   └── BundleTooNew     a format that this version does not know
├── DataError            a file of examples that can't be read
├── DependencyError      a package that is missing, doubled or too old
├── OutOfMemory          a graph or a batch that a GPU has no room for
├── ExportRefused        the exported graph does not agree with the model
├── TooMuch              more than one request to a service may ask for
└── ItemError            one text or pair that can't be classified; a value in its Prediction
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any


class XltError(Exception):
    """``value``: what was given; ``rule``: what it breaks; ``remedy``: what to do."""

    code = "failed"
    exit_code = 1

    def __init__(self, value: object, rule: str, remedy: str = "") -> None:
        self.value, self.rule, self.remedy = str(value), rule, remedy
        super().__init__(value, rule, remedy)

    def __str__(self) -> str:
        sentence = f"{_shown(self.value)}: {self.rule}" if self.value else self.rule
        return f"{sentence}; {self.remedy}" if self.remedy else sentence


class UsageError(XltError):
    code = "usage"
    exit_code = 2


class ConfigError(UsageError):
    """All problems of one config, so that a user mends them in one go."""

    code = "config"

    def __init__(self, source: object, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(source, f"{count}: " + "; ".join(self.problems))


class TooMuch(XltError):
    """More than one request may ask for, however little the service has to do."""

    code = "too_many_windows"


class BundleError(XltError):
    code = "bundle"


class BundleNotFound(BundleError):
    code = "bundle_not_found"


class BundleAltered(BundleError):
    code = "bundle_altered"


class BundleTooNew(BundleError):
    code = "bundle_too_new"


class DataError(XltError):
    code = "data"


class DependencyError(XltError):
    code = "dependency"


class OutOfMemory(XltError):
    code = "out_of_memory"


class ExportRefused(XltError):
    code = "export_refused"


class ItemError(XltError):
    """``code`` says which rule an item broke: empty, not_text, too_large, too_long, shape; or what
    could not be done with it: not_tokenised, not_finite."""

    def __init__(self, code: str, value: object, rule: str, remedy: str = "") -> None:
        super().__init__(value, rule, remedy)
        self.code = code


def first_line(error: BaseException, most: int = 200) -> str:
    """Of what a library says, for a sentence of ours; the name of the error where it says nothing."""
    said = str(error).strip()
    return said.splitlines()[0][:most] if said else type(error).__name__


def with_name(error: Exception, most: int = 300) -> str:
    """As ``first_line``, behind the error's name."""
    name = type(error).__name__
    return f"{name}: {first_line(error)}"[:most] if str(error).strip() else name


def needed(module: str, what_for: str, extra: str) -> Any:
    """A module of a package that not every installation has."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DependencyError(
            module.split(".")[0],
            f"is needed for {what_for} and can't be imported ({error})",
            f"pip install 'xlt-serve[{extra}]'",
        ) from None


def _shown(value: str, longest: int = 200) -> str:
    line = value.encode("utf-8", "backslashreplace").decode().replace("\n", "\\n")
    return line if len(line) <= longest else line[: longest - 1] + "…"
