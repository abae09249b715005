"""OpenTelemetry, where it is configured: BentoML has the span of a request, this adds its parts."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from xlt_serve.serving.answering import AnsweredQuery


def settings(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """BentoML's tracing settings from OpenTelemetry's own variables; not set: no tracing."""
    given = os.environ if environment is None else environment
    endpoint = given.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint:
        return {"tracing": {"excluded_urls": ".*"}}  # or each request would be traced for nobody
    protocol = (
        "http" if given.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc").startswith("http") else "grpc"
    )
    if protocol == "http":  # the variable names the server, BentoML wants the path for traces too
        endpoint = endpoint.rstrip("/").removesuffix("/v1/traces") + "/v1/traces"
    rate = float(given.get("OTEL_TRACES_SAMPLER_ARG") or 1.0)
    return {
        "tracing": {
            "exporter_type": "otlp",
            "sample_rate": rate,
            "otlp": {"protocol": protocol, "endpoint": endpoint},
        }
    }


def record(reply: AnsweredQuery, known: Mapping[str, Any], provider: Any = None) -> None:
    """Attributes on the request's span, and spans within it for waiting and running."""
    from opentelemetry import trace

    span = trace.get_current_span()
    if not span.is_recording():
        return
    for name, value in known.items():
        span.set_attribute(f"xlt.{name}", value)
    if provider is None:
        from bentoml._internal.configuration.containers import BentoMLContainer

        provider = BentoMLContainer.tracer_provider.get()
    tracer = provider.get_tracer("xlt-serve")
    end = time.time_ns()
    start = end - int(reply.seconds * 1e9)
    first = start + int(reply.ticket.until_run * 1e9)
    last = min(end, first + int(reply.ticket.ran * 1e9))
    for name, begun, ended in (("prepare and wait", start, first), ("run", first, last)):
        tracer.start_span(name, start_time=begun).end(ended)
