"""Plain fine-tuning on the source language: cross-entropy, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from xlt_training.loop.method import Method


@dataclass
class Vanilla(Method):
    """Zero-shot transfer's baseline: train on the source language, use everywhere."""
