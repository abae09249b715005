"""Tests, in the tree of what they test."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
