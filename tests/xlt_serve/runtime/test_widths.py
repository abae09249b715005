"""As many logits as labels, and noise where the manifest says: before a run, and after it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xlt_serve.bundle import Bundle
from xlt_serve.errors import BundleError
from xlt_serve.runtime.graph_io import PlainIO
from xlt_serve.runtime.open_graph import described
from xlt_serve.runtime.runners import Runner
from xlt_serve.text.tokens import Piece

KINDS = ("plain", "perturbed", "paired")


def misread(bundle: Bundle, **wrong: Any) -> Bundle:
    return replace(bundle, manifest=replace(bundle.manifest, **wrong))


@pytest.mark.parametrize("graph", KINDS)
def test_every_graph_gives_as_many_logits_as_there_are_labels(
    graph_bundles: dict[str, Bundle], graph: str
) -> None:
    bundle = next(b for b in graph_bundles.values() if graph in b.manifest.graphs)
    described(bundle, graph)
    with pytest.raises(BundleError, match="gives 3 for 2 labels"):
        described(misread(bundle, labels=("a", "b")), graph)


def test_noise_goes_where_the_manifest_says(graph_bundles: dict[str, Bundle]) -> None:
    for bundle in graph_bundles.values():
        at = bundle.manifest.noise.get("at", "embeddings")
        other = "encoder" if at == "embeddings" else "embeddings"
        with pytest.raises(BundleError, match=f"adds noise at the {at}, the manifest says {other}"):
            described(misread(bundle, noise={"at": other}), "perturbed")


class Fixed:
    """A session that gives the same whatever it is asked."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def run(self, feeds: object) -> dict[str, Any]:
        return {"logits": np.zeros(self.shape, dtype=np.float32)}


def test_a_width_that_the_file_leaves_open_is_looked_at_after_the_run() -> None:
    io = PlainIO({"input_ids": ("batch", "length")}, 0)

    def run(*shape: int) -> dict[str, Any]:
        return Runner(Fixed(*shape), io, 3).run([Piece([1], [0])])  # type: ignore[arg-type]

    assert run(1, 3)["logits"].shape == (1, 3)
    for shape in ((1, 4), (1, 2), (2, 3), (3,)):
        with pytest.raises(BundleError, match="for 1 rows, 3 labels"):
            run(*shape)
