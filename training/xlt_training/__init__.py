"""Train robust cross-lingual text classifiers: ``fit(train, out)``, ``export(out, bundle)``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xlt_training.api import Fitted, export, fit

__all__ = ["Fitted", "export", "fit"]


def __getattr__(name: str) -> Any:
    """They import torch, which much of this package does without."""
    if name in __all__:
        from xlt_training import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
