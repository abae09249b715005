"""Prometheus metrics that answer questions: is the queue too long, are batches full, how much is
padding, how often does the model abstain, are texts cut, which languages come."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from xlt_serve.serving.scheduler import RunRecord
from xlt_serve.serving.worker_state import Notice
from xlt_serve.translation.statistics import Event
from xlt_serve.types import Prediction

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
RUNS = (*SECONDS[:4], *(n / 200 for n in range(3, 21)), *SECONDS[7:])
"""In steps of 5 ms up to .1 s, which a run should take at most: it is what others wait for."""
TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


_CODES = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv "
    "dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig "
    "ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh "
    "mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru "
    "rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty "
    "ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)
LANGUAGES = frozenset(_CODES.split())
"""ISO 639-1, two withdrawn codes among them that are still in use: each may be a series."""

SHARED = 1.0
"""Seconds for which all who ask are told the same numbers: to gather them takes a while."""


class Metrics:
    """Made once in a process, after BentoML has said where its processes keep their numbers."""

    def __init__(self) -> None:
        import prometheus_client as p

        self.requests = p.Counter("xlt_requests", "Requests answered", ["path", "status"])
        self.seconds = p.Histogram(
            "xlt_request_seconds", "From first byte to answer", ["path"], buckets=SECONDS
        )
        self.refused = p.Counter("xlt_refused", "Requests not answered with 200", ["code"])
        self.cut = p.Counter(
            "xlt_connections_cut", "Connections that a limit of HTTP ended", ["reason"]
        )
        self.queue = p.Histogram(
            "xlt_queue_wait_seconds", "From arrival to the first run", buckets=SECONDS
        )
        self.runs = p.Histogram("xlt_run_seconds", "Of one batch", ["graph"], buckets=RUNS)
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
        self.unloads = p.Counter("xlt_unloads", "Bundles unloaded", ["bundle"])
        self.warnings = p.Gauge(
            "xlt_warnings",
            "What /models warns of: state_unreadable, bundle_altered, bundle_missing, …",
            ["code"],
            multiprocess_mode="livesum",
        )
        self._warned: set[str] = set()
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
        self._of_the_loop(p)

    def _of_the_loop(self, p: Any) -> None:
        self.lost_lines = p.Counter(
            "xlt_log_lines_lost", "Lines of the log that nobody took in time"
        )
        self.lag = p.Histogram(
            "xlt_loop_lag_seconds",
            "How late the event loop was, 100 looks a second",
            buckets=SECONDS,
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

    def warn(self, notices: Iterable[Notice]) -> None:
        counts = Counter(notice.code for notice in notices)
        self._warned |= counts.keys()
        for code in self._warned:
            self.warnings.labels(code).set(counts[code])

    def translated(self, event: Event) -> None:
        language = _language(event.source)
        self.translations.labels(event.engine, language, event.kind).inc(event.texts)
        if event.seconds:
            self.translating.labels(event.engine).observe(event.seconds)

    def answered(self, bundle: str, predictions: list[Prediction]) -> None:
        """Counted first: a thousand items have few series, and to look one up takes longest."""
        found: Counter[tuple[Any, ...]] = Counter()
        for prediction in predictions:
            outcome = "label"
            if prediction.error is not None:
                outcome = "error"
            elif prediction.label is None:
                outcome = f"abstained_{prediction.abstained}"
            found[self.predictions, prediction.mode, outcome] += 1
            if prediction.pairing is not None and prediction.pairing.reason is not None:
                found[self.unmixed, prediction.pairing.reason.code] += 1
            if prediction.truncated:
                found[(self.truncated,)] += 1
            if prediction.error is None:
                found[self.languages, _language(prediction.language)] += 1
        for (counter, *labels), count in found.items():
            counter.labels(bundle, *labels).inc(count)


class Rendered:
    """What ``render`` gave last, for ``seconds`` and as long as ``edition`` is the same; whoever comes
    while it is at it waits for that."""

    def __init__(
        self,
        render: Callable[[], tuple[bytes, str]],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        edition: Callable[[], object] = lambda: None,
    ) -> None:
        self._render, self._seconds, self._clock, self._edition = render, seconds, clock, edition
        self._lock = threading.Lock()
        self._last: tuple[float, object, tuple[bytes, str]] | None = None  # until when, edition

    def __call__(self) -> tuple[bytes, str]:
        with self._lock:
            if (last := self.fresh()) is not None:
                return last
            edition = self._edition()  # before: what changes meanwhile is not in it
            rendered = self._render()
            self._last = self._clock() + self._seconds, edition, rendered
            return rendered

    def fresh(self) -> tuple[bytes, str] | None:
        """At once, or None: it is to be rendered."""
        if (last := self._last) is None or self._clock() >= last[0] or self._edition() != last[1]:
            return None
        return last[2]


class OneThread:
    """For an event loop: of all who come while it is rendered, one takes a thread."""

    def __init__(self, rendered: Rendered) -> None:
        self._rendered, self._turn = rendered, asyncio.Lock()

    async def __call__(self) -> tuple[bytes, str]:
        if (last := self._rendered.fresh()) is not None:
            return last
        async with self._turn:
            if (last := self._rendered.fresh()) is None:
                last = await asyncio.to_thread(self._rendered)
            return last


def _numbers() -> tuple[bytes, str]:
    """All numbers of all workers as Prometheus reads them, and the content type."""
    import prometheus_client as p
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = p.REGISTRY
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):  # BentoML's doing
        registry = p.CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return p.generate_latest(registry), p.CONTENT_TYPE_LATEST


exposed = Rendered(_numbers, SHARED)


def forget(process: int) -> None:
    """A worker was killed: what it had waiting and under way is gone."""
    from prometheus_client.multiprocess import mark_process_dead

    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        mark_process_dead(process)  # type: ignore[no-untyped-call]


def _language(language: Any) -> str:
    """A client may call a language what it likes; series must stay few."""
    if language is None:
        return "unknown"
    code = language.lower() if isinstance(language, str) else ""
    return code if code in LANGUAGES else "other"


@cache
def metrics() -> Metrics:
    return Metrics()
