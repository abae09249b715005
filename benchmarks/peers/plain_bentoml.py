"""What most people would write: BentoML around ``transformers.pipeline``, with BentoML's batching."""

from __future__ import annotations

import os

import bentoml


@bentoml.service(name="plain", traffic={"timeout": 600})
class Plain:
    def __init__(self) -> None:
        import torch
        from transformers import pipeline

        torch.set_num_threads(int(os.environ["THREADS"]))
        self.run = pipeline(
            "text-classification",
            model=os.environ["CHECKPOINT"],
            top_k=None,
            truncation=True,
            max_length=128,
            device=-1,
        )
        self.run("warm")

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=600_000)
    def classify(self, texts: list[str]) -> list[list[dict[str, float | str]]]:
        out: list[list[dict[str, float | str]]] = self.run(texts, batch_size=len(texts))
        return out


@bentoml.service(name="empty")
class Empty:
    """How long BentoML itself takes to start."""

    @bentoml.api
    def nothing(self) -> str:
        return ""
