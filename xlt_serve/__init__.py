"""Serve robust cross-lingual text classifiers: ``load(name_or_path).predict(texts)``."""

from typing import TYPE_CHECKING, Any

from xlt_serve.classifier import Classifier, load
from xlt_serve.errors import XltError
from xlt_serve.types import Failure, Prediction

if TYPE_CHECKING:
    from xlt_serve.client import AsyncClient, Client

__all__ = ["AsyncClient", "Classifier", "Client", "Failure", "Prediction", "XltError", "load"]


def __getattr__(name: str) -> Any:
    """Clients need packages that the library does without: imported when they are asked for."""
    if name in ("AsyncClient", "Client"):
        from xlt_serve import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
