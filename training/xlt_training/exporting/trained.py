"""What training leaves for serving: the methods are asked, and none is named here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xlt_serve.errors import UsageError
from xlt_serve.runtime.graph_io import GRAPHS
from xlt_serve.text import synonyms
from xlt_training.data import recorded
from xlt_training.loop.method import Method, Pairing
from xlt_training.loop.model import Description
from xlt_training.loop.words import synonyms_file
from xlt_training.methods import METHODS


def chosen_graphs(asked: Sequence[str], methods: Sequence[Method]) -> list[str]:
    """Which graphs to make, in the order of GRAPHS: plain always, and those that are asked for or,
    where none are, those that the methods bring."""
    if unknown := sorted(set(asked) - set(GRAPHS)):
        raise UsageError(f"graphs {', '.join(unknown)}", f"known are {', '.join(GRAPHS)}")
    if "paired" in asked and pairing_of(methods) is None:
        names = [name for name, kind in METHODS.items() if "paired" in kind.graphs]
        raise UsageError(
            "graph paired", f"needs a model trained with {' or '.join(names)}", "leave it out"
        )
    brought = []
    for method in methods:
        for graph in method.graphs:
            why = method.refuses(graph)
            if why and graph in asked:
                raise UsageError(f"graph {graph}", why, "leave it out")
            brought += [] if why else [graph]
    wanted = asked or brought
    return [graph for graph in GRAPHS if graph in wanted or graph == "plain"]


def pairing_of(methods: Sequence[Method]) -> Pairing | None:
    """The method by which the model reads a text beside its translation, if there is one."""
    return next((found for method in methods if (found := method.pairing()) is not None), None)


def noise_place(methods: Sequence[Method]) -> str:
    """Where noise goes at prediction: where training added it, else on the embeddings."""
    return next((noise.at for method in methods if (noise := method.noise())), "embeddings")


def trained_noise(methods: Sequence[Method]) -> dict[str, Any]:
    """What the manifest says of noise: where it goes, and which kind the model has learnt to bear."""
    for method in methods:
        if (noise := method.noise()) and noise.kind:
            return {"at": noise.at, "kind": noise.kind, "scale": noise.scale}
    return {"at": noise_place(methods)}


def trained_words(methods: Sequence[Method], description: Description) -> dict[str, Any]:
    """How training drew synonyms, if it did; with the table's hash if it is still to be had whole."""
    drawn = next((found for method in methods if (found := method.synonyms())), None)
    if drawn is None:
        return {}
    language = description.source_language
    task = recorded(description.config.get("task", {"name": ""}))
    file = synonyms_file(drawn.table or task.synonyms, task.lexicon_place, language)
    out = {"draws": drawn.draws, "language": language}
    if drawn.share == 1 and file is not None and file.is_file():
        out["sha256"] = synonyms.read(file, language).sha256
    return out
