"""Prometheus metrics that answer questions: is the queue too long, are batches full, how much is
padding, how often does the model abstain, are texts cut, which languages come."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from xlt_serve.serving.scheduler import RunRecord
from xlt_serve.translation.statistics import Event
from xlt_serve.types import Prediction

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Made once in a process, after BentoML has said where its processes keep their numbers."""

    def __init__(self) -> None:
        import prometheus_client as p

        self.requests = p.Counter("xlt_requests", "Requests answered", ["path", "status"])
        self.seconds = p.Histogram(
            "xlt_request_seconds", "From first byte to answer", ["path"], buckets=SECONDS
        )
        self.refused = p.Counter("xlt_refused", "Requests not answered with 200", ["code"])
        self.queue = p.Histogram(
            "xlt_queue_wait_seconds", "From arrival to the first run", buckets=SECONDS
        )
        self.runs = p.Histogram("xlt_run_seconds", "Of one batch", ["graph"], buckets=SECONDS)
        self.rows = p.Histogram("xlt_batch_rows", "Rows of one batch", ["graph"], buckets=ROWS)
        self.batch = p.Histogram(
            "xlt_batch_tokens", "Padded tokens of one batch", ["graph"], buckets=TOKENS
        )
        self.tokens = p.Counter("xlt_tokens", "Tokens run, without padding", ["graph"])
        self.padded = p.Counter(
            "xlt_padded_tokens", "Tokens run; waste is 1 - xlt_tokens / this", ["graph"]
        )
        self.failed = p.Counter("xlt_failed_runs", "Batches that failed and were split", ["graph"])
        self.predictions = p.Counter(
            "xlt_predictions",
            "Items answered: label, abstained (votes, confidence) or error",
            ["bundle", "mode", "outcome"],
        )
        self.truncated = p.Counter("xlt_truncated", "Items that were cut", ["bundle"])
        self.languages = p.Counter("xlt_languages", "Items by language", ["bundle", "language"])
        self.swaps = p.Counter("xlt_swaps", "Bundles swapped", ["bundle"])
        self.translations = p.Counter(
            "xlt_translations",
            "Texts by what became of them: translated, cached, failed, timeout, …",
            ["engine", "language", "outcome"],
        )
        self.translating = p.Histogram(
            "xlt_translation_seconds", "Of an engine's call", ["engine"], buckets=SECONDS
        )
        self.unmixed = p.Counter(
            "xlt_untranslated", "Items answered without their translation", ["bundle", "reason"]
        )
        self.waiting = p.Gauge(
            "xlt_waiting_tokens", "Tokens that wait", multiprocess_mode="livesum"
        )
        self.in_flight = p.Gauge(
            "xlt_requests_in_flight", "Requests under way", multiprocess_mode="livesum"
        )

    def run(self, run: RunRecord) -> None:
        if run.error:
            self.failed.labels(run.graph).inc()
            return
        self.runs.labels(run.graph).observe(run.seconds)
        self.rows.labels(run.graph).observe(run.rows)
        self.batch.labels(run.graph).observe(run.padded)
        self.tokens.labels(run.graph).inc(run.tokens)
        self.padded.labels(run.graph).inc(run.padded)

    def translated(self, event: Event) -> None:
        language = _language(event.source)
        self.translations.labels(event.engine, language, event.kind).inc(event.texts)
        if event.seconds:
            self.translating.labels(event.engine).observe(event.seconds)

    def answered(self, bundle: str, predictions: list[Prediction]) -> None:
        for prediction in predictions:
            outcome = "label"
            if prediction.error is not None:
                outcome = "error"
            elif prediction.label is None:
                outcome = f"abstained_{prediction.abstained}"
            self.predictions.labels(bundle, prediction.mode, outcome).inc()
            if prediction.pairing is not None and prediction.pairing.reason is not None:
                self.unmixed.labels(bundle, prediction.pairing.reason.code).inc()
            if prediction.truncated:
                self.truncated.labels(bundle).inc()
            if prediction.error is None:
                self.languages.labels(bundle, _language(prediction.language)).inc()


def exposed() -> tuple[bytes, str]:
    """All numbers of all workers as Prometheus reads them, and the content type."""
    import prometheus_client as p
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = p.REGISTRY
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):  # BentoML's doing
        registry = p.CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return p.generate_latest(registry), p.CONTENT_TYPE_LATEST


def forget(process: int) -> None:
    """A worker was killed: what it had waiting and under way is gone."""
    from prometheus_client.multiprocess import mark_process_dead

    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        mark_process_dead(process)  # type: ignore[no-untyped-call]


def _language(language: Any) -> str:
    """A client may call a language what it likes; series must stay few."""
    if language is None:
        return "unknown"
    known = isinstance(language, str) and len(language) == 2 and language.isascii()
    return language if known and language.isalpha() else "other"


@cache
def metrics() -> Metrics:
    return Metrics()
