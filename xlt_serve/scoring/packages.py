"""Packages that only some files need, and what to install where they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from xlt_serve.errors import DependencyError


def needed(module: str, what_for: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DependencyError(
            module.split(".")[0],
            f"is needed for {what_for} and can't be imported ({error})",
            f"pip install 'xlt-serve[{extra}]'",
        ) from None


def arrow(what_for: str) -> Any:
    return needed("pyarrow", what_for, "score")


def arrow_parquet() -> Any:
    return needed("pyarrow.parquet", "Parquet", "score")


def arrow_ipc() -> Any:
    return needed("pyarrow.ipc", "Parquet", "score")
