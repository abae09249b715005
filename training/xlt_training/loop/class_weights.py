"""How much each label counts in the loss (``train.class_weights``)."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from xlt_serve.errors import UsageError

ClassWeights: TypeAlias = Literal["none", "balanced"] | Mapping[str, float]


def refuse_unknown(given: Sequence[ClassWeights], labels: Sequence[str]) -> None:
    """Labels that no train example has are typos, told before anything is trained."""
    problems = []
    for label in dict.fromkeys(name for table in given for name in _named(table)):
        if label not in labels:
            near = difflib.get_close_matches(label, labels, 1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            problems.append(f"{label!r} is no label of the train set{hint}")
    if problems:
        there = f"the labels are {', '.join(labels)}"
        raise UsageError("train.class_weights", "; ".join(problems), there)


def _named(given: ClassWeights) -> Sequence[str]:
    return [] if isinstance(given, str) else list(given)


def weights_of(
    given: ClassWeights, labels: Sequence[str], truth: Iterable[str]
) -> list[float] | None:
    """A weight for each of ``labels``, as ``cross_entropy(weight=…)`` takes them; None: all alike.

    "balanced" is scikit-learn's: rows / (labels · rows of the label), counted over ``truth``, the
    labels that are trained on. Of a table, what it leaves out weighs 1.
    """
    if given == "none":
        return None
    if not isinstance(given, str):
        return [float(given.get(label, 1.0)) for label in labels]
    counts = Counter(truth)
    # A part of the train set may lack a label: then no row has its weight.
    return [counts.total() / (len(labels) * max(counts[label], 1)) for label in labels]
