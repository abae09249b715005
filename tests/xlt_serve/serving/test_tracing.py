"""Tracing: settings from OpenTelemetry's variables, spans for waiting and running."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from xlt_serve.serving.answering import AnsweredQuery
from xlt_serve.serving.scheduler import Ticket
from xlt_serve.serving.tracing import record, settings


def test_nothing_is_traced_unless_it_is_configured() -> None:
    assert settings({}) == {"tracing": {"excluded_urls": ".*"}}
    http = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
    }
    found = settings(http)["tracing"]
    assert found["otlp"] == {"protocol": "http", "endpoint": "http://c:4318/v1/traces"}
    plain = settings({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"})["tracing"]
    assert plain["otlp"] == {"protocol": "grpc", "endpoint": "http://c:4317"}
    assert plain["sample_rate"] == 1.0


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_bentoml_takes_the_settings() -> None:
    from _bentoml_sdk.service.config import validate

    validate(settings({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}))


def test_a_request_has_spans_for_waiting_and_running() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    ticket = Ticket(arrived=0.0, guess=0, waited=0.25, ran=0.5)
    answered = AnsweredQuery([], ticket, seconds=1.0)
    record(answered, {"items": 3}, provider)  # no span is open: nothing happens
    assert exporter.get_finished_spans() == ()
    with provider.get_tracer("t").start_as_current_span("request") as parent:
        record(answered, {"items": 3, "bundle": "topics"}, provider)
    wait, run, request = exporter.get_finished_spans()
    assert dict(request.attributes or {}) == {"xlt.items": 3, "xlt.bundle": "topics"}
    for span, name, seconds in ((wait, "prepare and wait", 0.25), (run, "run", 0.5)):
        assert span.name == name
        assert span.parent is not None
        assert span.parent.span_id == parent.get_span_context().span_id
        assert ((span.end_time or 0) - (span.start_time or 0)) / 1e9 == seconds
    assert trace.get_current_span().is_recording() is False
