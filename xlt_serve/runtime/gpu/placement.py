"""What of a graph may run on the CPU beside a GPU: shape arithmetic, and nothing else. Pure functions.

onnxruntime puts what a GPU has no kernel for on the CPU, without a word. Small integers that hang on
the shapes of the inputs alone are meant to be there; whatever touches a value of the inputs is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from typing import NamedTuple

from xlt_serve.runtime.onnx_file import Node

SHAPES = ("Shape", "Size")
"""Operators that read the shape of a tensor, not what is in it."""


class Placed(NamedTuple):
    """Where onnxruntime runs a node; it may have named and made it itself."""

    provider: str
    operator: str
    name: str


def shape_arithmetic(nodes: Iterable[Node], constants: Set[str]) -> frozenset[tuple[str, str]]:
    """(name, operator) of the nodes whose results hang on constants and on the shapes of the inputs
    alone. A name that another node of the operator has too is out, unless that is one as well."""
    known = {*constants, ""}
    arithmetic, others = set(), set()
    for node in nodes:  # ONNX has them in the order of their computation
        if node.operator in SHAPES or known.issuperset(node.inputs):
            known.update(node.outputs)
            arithmetic.add((node.name, node.operator))
        else:
            others.add((node.name, node.operator))
    return frozenset(arithmetic - others)


def misplaced(
    places: Iterable[Placed], provider: str, allowed: Set[tuple[str, str]] = frozenset()
) -> dict[str, int]:
    """Operators (with their number) that run elsewhere than on ``provider`` and are not ``allowed``."""
    elsewhere = (
        place.operator
        for place in places
        if place.provider != provider and (place.name, place.operator) not in allowed
    )
    return dict(sorted(Counter(elsewhere).items()))
