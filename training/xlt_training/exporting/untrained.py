"""A bundle of an encoder with a fresh head: its latency is that of any classifier on it, its answers mean
nothing. So a machine can be measured before anything is trained."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from xlt_serve.bundle import Bundle
from xlt_training.exporting import checkpoint
from xlt_training.exporting.checkpoint import Order
from xlt_training.loop import model
from xlt_training.loop.model import Description

LABELS, LONGEST = 7, 128
"""As many as SIB-200 has, and as long as texts of the shipped bundle may be."""

NOTES = "untrained: for measuring latency, the answers mean nothing"


def export(encoder: str, out: Path, order: Order) -> Bundle:
    """Of an encoder's shipped name or folder, with the graphs of the order."""
    checkpoint.check(order, out)
    torch.manual_seed(0)
    paired = [{"name": "xmixup"}] if "paired" in order.graphs else []
    description = Description(
        task="untrained",
        pair=False,
        labels=[f"label {number}" for number in range(LABELS)],
        source_language="en",
        max_length=LONGEST,
        config={"encoder": encoder, "stages": [{"methods": paired}], "seed": 0},
    )
    network = model.build(encoder, description.labels, LONGEST)
    for method in model.methods_of(description):
        method.attach(network)
    with torch.no_grad():
        # Fresh biases are all zero, and equal tensors would be merged into one.
        for parameter in network.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    with tempfile.TemporaryDirectory() as folder:
        model.save(
            Path(folder), network, replace(description, max_length=network.encoding.max_length)
        )
        return checkpoint.export(
            Path(folder), out, replace(order, agreement=0, notes=order.notes or NOTES)
        )
