"""The columns that scoring adds, and what a prediction puts into them.

They are the fields of a prediction on the wire behind a prefix, and ``probability``, that of the
likeliest label.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from xlt_serve.bundle import Manifest
from xlt_serve.files.packages import arrow
from xlt_serve.modes import MODES
from xlt_serve.types import Prediction

PLAIN = (
    "label",
    "probability",
    "probabilities",
    "language",
    "tokens",
    "truncated",
    "windows",
    "mode",
    "abstained",
    "error",
)


NEWER = ("quality", "agreement", "weight", "warning")
"""That outputs of the first edition lack: a run that was begun without them does not go on with them."""


def possible(mode: str) -> tuple[str, ...]:
    """All that answers may have."""
    names = PLAIN + MODES[mode].fields
    return names if "warning" in names else (*names, "warning")


def added(mode: str, manifest: Manifest) -> tuple[str, ...]:
    """Warnings have a column where there can be any."""
    names = PLAIN + MODES[mode].fields
    warns = manifest.trimmed_to is not None and "warning" not in names
    return (*names, "warning") if warns else names


def values(prediction: Prediction, names: Sequence[str]) -> dict[str, Any]:
    """By name, as JSON has them; null where this prediction has no such field."""
    found = prediction.to_dict()
    found["probability"] = max(found["probabilities"].values(), default=None)
    return {name: found.get(name) for name in names}


def flat(value: Any) -> str:
    """A value as text, for formats that have nothing else."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict) and value.keys() == {"code", "message"}:
        return f"{value['code']}: {value['message']}"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def arrow_type(name: str, labels: Sequence[str]) -> Any:
    pa = arrow("Parquet")
    text = pa.string()
    kinds = {
        "probability": pa.float64(),
        "probabilities": pa.struct([(label, pa.float64()) for label in labels]),
        "tokens": pa.int64(),
        "windows": pa.int64(),
        "truncated": pa.bool_(),
        "error": pa.struct([("code", text), ("message", text)]),
        "votes": pa.struct([(label, pa.int64()) for label in labels]),
        "draws": pa.int64(),
        "seed": pa.int64(),
        "lower_bound": pa.float64(),
        "mixed": pa.bool_(),
        "ratio": pa.float64(),
        "quality": pa.float64(),
        "agreement": pa.float64(),
        "weight": pa.float64(),
    }
    return kinds.get(name, text)


def arrow_values(name: str, found: Sequence[Any], labels: Sequence[str]) -> Any:
    """A column; what has no type of its own (a certificate, a translated pair) is JSON text."""
    kind = arrow_type(name, labels)
    pa = arrow("Parquet")
    if kind == pa.string():
        return pa.array([None if value is None else flat(value) for value in found], kind)
    if pa.types.is_struct(kind):
        return pa.array([value or None for value in found], kind)
    return pa.array(found, kind)
