"""Templates: lines that end in ``#if WORD`` stay where the word holds, ``@{name}`` is a value."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
BASE = "python:3.11.13-slim-bookworm"
"""The image that all others begin with, also those for GPUs: CUDA's own images have no Python, and its
libraries come as Python packages (``lock-cuda.txt``)."""

_CONDITION = re.compile(r"\s*#if (\w+)$")


class Recipe(string.Template):
    delimiter = "@"


def render(name: str, words: frozenset[str], values: Mapping[str, str]) -> str:
    """A template of this folder as it is written for a build."""
    lines = []
    for line in (HERE / name).read_text(encoding="utf-8").splitlines():
        condition = _CONDITION.search(line)
        if condition is None or condition[1] in words:
            lines.append(line[: condition.start()] if condition else line)
    return Recipe("\n".join(lines) + "\n").substitute(values)


def lock(gpu: bool) -> str:
    """What an image installs, each file with its hash: serving and signatures, on GPUs CUDA."""
    names = ("gpu", "cuda") if gpu else ("serve",)
    return "".join((HERE / f"lock-{name}.txt").read_text(encoding="utf-8") for name in names)
