"""What is run before a bundle answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import xlt_serve
from xlt_serve.classifier import Classifier
from xlt_serve.errors import BundleError
from xlt_serve.runtime.graph_io import PlainIO
from xlt_serve.serving import loading, rehearsal, warm_up


@pytest.mark.parametrize(
    ("logits", "says"),
    [
        (np.full((2, 3), np.nan, np.float32), "its plain graph gives logits that are no numbers"),
        (np.zeros((1, 3), np.float32), r"gives logits of shape \(1, 3\) for 2 rows"),
    ],
)
def test_what_a_graph_gives_is_looked_at(logits: Any, says: str) -> None:
    io = PlainIO({"input_ids": ("batch", "length"), "attention_mask": ("batch", "length")}, 0)
    runner = SimpleNamespace(io=io, run=lambda rows: {"logits": logits})
    manifest = SimpleNamespace(graphs={"plain": None}, max_length=16)
    runners = SimpleNamespace(of=lambda graph: runner)
    bundle = SimpleNamespace(manifest=manifest, path="here")
    classifier: Any = SimpleNamespace(bundle=bundle, runners=runners)
    with pytest.raises(BundleError, match=says):
        warm_up.run_examples(classifier)


def test_a_rehearsal_runs_what_a_worker_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = xlt_serve.load("topics", threads=1)
    run: list[Classifier] = []
    for module in (loading, rehearsal):
        monkeypatch.setattr(module, "warm_up", lambda classifier, alone: run.append(classifier))
        monkeypatch.setattr(module, "Classifier", lambda *given, **more: classifier)
    rehearsal.run(classifier.bundle.path, "cpu")
    loader: Any = SimpleNamespace(
        environment=SimpleNamespace(provider="cpu", synonyms={}, warm=("plain",), budget=0),
        _device=lambda: 0,
        threads=1,
        translators=None,
        scheduler=SimpleNamespace(open=lambda runners, graph: (None, None)),
    )
    loading.Loader.open(loader, classifier.bundle)
    assert run == [classifier] * 2
