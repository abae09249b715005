"""The inputs of each graph: rows to arrays and back, padding, examples."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests import ROOT
from tests.imports import modules, tree
from xlt_serve.runtime.graph_io import NOISE, ROW, TEXT, TRANSLATION, pad

OWNER = "xlt_serve/runtime/graph_io.py"
OUTSIDE = "xlt_serve/bench/outside/"  # runs where this package is not installed
# These talk to transformers' models and tokenizers, whose inputs have the names of a text's.
OF_TRANSFORMERS = tuple(
    f"training/xlt_training/{room}/" for room in ("loop", "methods", "analysis", "encoders")
)
# Elsewhere, "row" and "noise" are other things as well.
WITH_FEEDS = ("xlt_serve/runtime/", "xlt_serve/modes/", "training/xlt_training/exporting/")


def test_pad() -> None:
    ids, mask = pad([[5, 6, 7], [8]], 1)
    np.testing.assert_array_equal(ids, [[5, 6, 7], [8, 1, 1]])
    np.testing.assert_array_equal(mask, [[1, 1, 1], [1, 0, 0]])


def quoted(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_nothing_else_names_the_inputs_of_a_graph() -> None:
    found = []
    for package in ("xlt_serve", "xlt_training"):
        for file in modules(package).values():
            place = str(file.relative_to(ROOT))
            if place.startswith((OWNER, OUTSIDE)):
                continue
            names = {TRANSLATION.ids, TRANSLATION.mask, TRANSLATION.types}
            if not place.startswith(OF_TRANSFORMERS):
                names |= {TEXT.ids, TEXT.mask, TEXT.types}
            if place.startswith(WITH_FEEDS):
                names |= {ROW, NOISE}
            found += [f"{place}:{line} {text}" for line, text in quoted(file) if text in names]
    assert not found, f"{OWNER} has them: " + "; ".join(found)
