"""Packages that only some files need, and what to install where they are missing."""

from __future__ import annotations

from typing import Any

from xlt_serve.errors import needed

__all__ = ["arrow", "arrow_ipc", "arrow_parquet", "needed"]


def arrow(what_for: str) -> Any:
    return needed("pyarrow", what_for, "score")


def arrow_parquet() -> Any:
    return needed("pyarrow.parquet", "Parquet", "score")


def arrow_ipc() -> Any:
    return needed("pyarrow.ipc", "Parquet", "score")
