"""Serve robust cross-lingual text classifiers: ``load(name_or_path).predict(texts)``."""

from importlib import metadata
from typing import TYPE_CHECKING, Any

from xlt_serve.classifier import Classifier, load
from xlt_serve.errors import XltError
from xlt_serve.types import Failure, Prediction

if TYPE_CHECKING:
    from xlt_serve.client import AsyncClient, Client

__all__ = [
    "AsyncClient",
    "Classifier",
    "Client",
    "Failure",
    "Prediction",
    "XltError",
    "__version__",
    "load",
]

__version__: str


def __getattr__(name: str) -> Any:
    """Clients need packages that the library does without: imported when they are asked for."""
    if name in ("AsyncClient", "Client"):
        from xlt_serve import client

        return getattr(client, name)
    if name == "__version__":
        return metadata.version("xlt-serve")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
