"""What ``benchmarks.scoring`` runs in processes of their own; each prints one number."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

BATCH = 32
"""Of the pipeline."""


def bare(bundle: str, source: str) -> float:
    """Texts a second of the session alone, fed with perfect batches: the better of all cores for one
    run, and a run on each core."""
    from xlt_serve.classifier import load
    from xlt_serve.runtime.batching import plan
    from xlt_serve.runtime.session import available_cores

    texts = read(source)
    best = 0.0
    for threads, workers in ((0, 1), (1, available_cores())):
        classifier = load(bundle, threads=threads)
        runner: Any = classifier.runners.of("plain")
        pieces = [tokens.pieces[0] for tokens in classifier.encoder.encode(texts)]  # type: ignore[union-attr]
        batches = plan([piece.length for piece in pieces], classifier.budget)
        ready = [runner.io.feeds([pieces[i] for i in batch]) for batch in batches]
        runner.session.run(ready[-1])
        with ThreadPoolExecutor(workers) as pool:
            begun = time.perf_counter()
            list(pool.map(runner.session.run, ready))
            best = max(best, len(texts) / (time.perf_counter() - begun))
    return best


def pipeline(checkpoint: str, source: str) -> float:
    """Texts a second of ``transformers.pipeline``."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers import pipeline as make

    texts = read(source)
    classify = make(
        "text-classification",
        model=AutoModelForSequenceClassification.from_pretrained(checkpoint),
        tokenizer=AutoTokenizer.from_pretrained(checkpoint),
        batch_size=BATCH,
        truncation=True,
        max_length=128,
    )
    classify(texts[:BATCH])
    begun = time.perf_counter()
    classify(texts)
    return len(texts) / (time.perf_counter() - begun)


class Nothing:
    """A predictor that computes nothing: what is left is the cost of everything around it."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.share = {label: 1 / len(labels) for label in labels}

    def predict(self, items: Sequence[Any], **_: Any) -> list[Any]:
        from xlt_serve.types import Prediction

        label = next(iter(self.share))
        return [Prediction(label, dict(self.share), "de", len(item) // 4) for item in items]

    def sizes(self, items: Sequence[Any]) -> list[int]:
        return [len(item) // 4 for item in items]


def nothing(source: str, out: str) -> float:
    """The largest memory, in kilobytes, of scoring with a predictor that computes nothing."""
    from xlt_serve.scoring import Order, score

    score(
        Order(source, out, overwrite=True),
        open_predictor=lambda bundle, order: Nothing(bundle.manifest.labels),
    )
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def read(source: str) -> list[str]:
    with Path(source).open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print({"bare": bare, "pipeline": pipeline, "nothing": nothing}[name](*arguments))
