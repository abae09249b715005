"""Training from Python: ``fit(train, out)``, then ``export(out, bundle)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from xlt_serve.bundle import Bundle
from xlt_serve.files.labelled import Place
from xlt_training.exporting import checkpoint
from xlt_training.exporting.order import Order, OrderKeywords, refuse_unknown_options
from xlt_training.loop import config, trainer
from xlt_training.loop.settings import defaults


@dataclass(frozen=True)
class Fitted:
    """A finished run. ``dev_score``: by which its best epoch was chosen; ``languages``: accuracy on the dev
    rows of each."""

    checkpoint: Path
    dev_score: float
    languages: dict[str, float]


def fit(
    train: Place | Path,
    out: str | Path,
    *,
    dev: Place | Path = "",
    text: str = "text",
    label: str = "label",
    pair: str = "",
    language: str = "",
    source: str = "en",
    encoder: str = "small",
    methods: str | Sequence[str] = "vanilla",
    settings: Mapping[str, Any] | None = None,
) -> Fitted:
    """Train on a file of labelled rows, or go on where a stopped run left off.

    ``train`` and ``dev``: a file, a folder with a file for each language, a pattern with ``{language}``, or
    language → file; ``language``: the column that says it; ``methods``: by name, the outermost first;
    ``settings``: any key of a config, as ``{"train.epochs": 3}``. Settings that are not given suit the
    encoder.
    """
    encoder = (settings or {}).get("encoder", encoder)
    names = methods.split(",") if isinstance(methods, str) else list(methods)
    task = {
        "name": "files",
        "train": _plain(train),
        "dev": _plain(dev),
        "text": text,
        "label": label,
    }
    table: dict[str, Any] = {
        "encoder": encoder,
        "task": task | {"pair": pair, "language": language, "source": source},
        "train": defaults(encoder),
        "method": [{"name": name} for name in names],
    }
    made = config.of(table, settings or {}, "fit")
    found = trainer.train(made, Path(out))
    accuracies = {name: row["accuracy"] for name, row in found["languages"].items()}
    return Fitted(Path(out), found["dev_score"], accuracies)


def export(fitted: Fitted | str | Path, out: str | Path, **order: Unpack[OrderKeywords]) -> Bundle:
    """The bundle of a run; ``order``: the options of ``xlt export`` (``precision="int8"``, …), as
    ``Order`` tells them."""
    refuse_unknown_options(order)
    place = fitted.checkpoint if isinstance(fitted, Fitted) else Path(fitted)
    return checkpoint.export(place, Path(out), Order(**order))


def _plain(place: Place | Path) -> str | dict[str, str]:
    if isinstance(place, str | Path):
        return str(place)
    return {name: str(file) for name, file in place.items()}
