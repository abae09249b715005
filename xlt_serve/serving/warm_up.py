"""What a worker runs before a bundle answers, and its rehearsal too: a graph that fails or loops at one of
these shapes does so where nobody waits."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from xlt_serve.classifier import Classifier
from xlt_serve.errors import BundleError
from xlt_serve.runtime.graph_io import GRAPHS
from xlt_serve.runtime.runners import Runner
from xlt_serve.text.tokens import Tokens
from xlt_serve.types import Prediction


def warm_up(classifier: Classifier, alone: Runner) -> None:
    """``alone``: of the plain graph, for runs that have a core each."""
    for words in (1, 8, 64):
        text = "a " * words
        item = (text, text) if classifier.bundle.manifest.pair else text
        refuse_wrong(classifier, classifier.predict([item] * 2))
        [tokens] = classifier.encoder.encode([item])
        if isinstance(tokens, Tokens):  # else what was predicted says why
            alone.run(tokens.pieces)


def refuse_wrong(classifier: Classifier, found: Iterable[Prediction]) -> None:
    """What no text may lead to. One that is too long for the bundle may well be refused."""
    place = classifier.bundle.path
    for answer in found:
        if answer.error is not None and answer.error.code in ("not_tokenised", "not_finite"):
            rule = f"fails on a text ({answer.error.message})"
            raise BundleError(place, rule, "export it again")
        if not all(math.isfinite(value) for value in answer.probabilities.values()):
            raise BundleError(place, "gives probabilities that are no numbers", "export it again")


def run_examples(classifier: Classifier) -> None:
    """Every graph once: as many rows out as went in, and all of them numbers."""
    manifest = classifier.bundle.manifest
    for graph in sorted(set(manifest.graphs) & set(GRAPHS)):
        runner = classifier.runners.of(graph)
        rows = runner.io.example_rows(
            runner.io.sizes(2, min(16, manifest.max_length)), vocabulary=8
        )
        for name, values in runner.run(rows).items():
            if values.shape[:1] != (len(rows),):
                rule = f"gives {name} of shape {values.shape} for {len(rows)} rows"
            elif values.dtype.kind == "f" and not np.isfinite(values).all():
                rule = f"gives {name} that are no numbers"
            else:
                continue
            raise BundleError(
                classifier.bundle.path, f"its {graph} graph {rule}", "export it again"
            )
