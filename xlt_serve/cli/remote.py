"""``xlt predict --url``: the same lines, answered by a running service."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from xlt_serve import modes
from xlt_serve.types import Settings

Predict = Callable[[Sequence[object]], list[dict[str, Any]]]


def predictor(url: str, settings: dict[str, Any], bundle: str | None) -> tuple[Predict, bool]:
    """Predictions as JSON objects, and whether the service's bundle takes pairs. The key is read from
    ``XLT_API_KEY``: arguments show in lists of processes."""
    from xlt_serve.client import Client

    client = Client(url, os.environ.get("XLT_API_KEY") or None)
    models = client.models().models
    chosen = next((model for model in models if model.name == bundle), models[0])
    pair = bool(chosen.manifest.get("pair"))
    options = asked(settings) | {"bundle": bundle}

    def predict(items: Sequence[object]) -> list[dict[str, Any]]:
        # What is no text has its own error; bytes have no form in JSON, and null has the same error.
        sent = [None if isinstance(item, bytes) else item for item in items]
        given: dict[str, Any] = {"pairs" if pair else "texts": sent}
        answer = client.classify(**given, **options)
        named = {"bundle": answer.bundle.name, "version": answer.bundle.version}
        return [
            prediction.model_dump(exclude_unset=True) | named for prediction in answer.predictions
        ]

    return predict, pair


def asked(settings: dict[str, Any]) -> dict[str, Any]:
    """Only what differs from the defaults, flat, as the wire has it."""
    keywords = {modes.keyword(mode) for mode in modes.MODES.values()}
    flat = {name: value for name, value in settings.items() if name not in keywords}
    defaults = {each.name: each.default for each in fields(Settings)}
    for own in (value for name, value in settings.items() if name in keywords):
        flat |= {each.name: getattr(own, each.name) for each in fields(own)}
        defaults |= {each.name: each.default for each in fields(own)}
    return {name: value for name, value in flat.items() if value != defaults[name]}
