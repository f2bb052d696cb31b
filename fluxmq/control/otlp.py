"""OpenTelemetry's library: makes spans and sends them by OTLP over HTTP.

Imported only where tracing is enabled: the library is an extra, and takes memory. All spans have the publisher's span,
that of the message's ``traceparent``, as parent; a delivery links to it as well.

Source: OpenTelemetry's Python SDK; OTLP 1.9.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from fluxmq.control.span_attributes import error_type, span_attributes, span_name
from fluxmq.ipc.span_messages import SpanRecord, SpanStage
from fluxmq.settings.traces import Tracing

KINDS: Final = {
    SpanStage.ACCEPT: SpanKind.CONSUMER,
    SpanStage.COMMIT: SpanKind.INTERNAL,
    SpanStage.DELIVER: SpanKind.PRODUCER,
}
_NS: Final = 1000
"""Nanoseconds of a microsecond."""


class FinishedSpans(SpanProcessor):
    """Collects the spans that the library has made."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a span until it is taken."""
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        """Return what has been made since the last call."""
        spans, self._spans = self._spans, []
        return spans


class OtlpExporter:
    """Sends spans to the collector of the settings. Raises OSError if its certificates cannot be read."""

    def __init__(self, settings: Tracing, node: str, version: str) -> None:
        if settings.ca_file is not None:
            with open(settings.ca_file, "rb"):
                pass
        secret = settings.authorization
        self._exporter = OTLPSpanExporter(
            endpoint=settings.endpoint,
            certificate_file=settings.ca_file,
            headers=None if secret is None else {"authorization": secret.reveal()},
            timeout=settings.timeout,
        )
        # It logs a line, some with a traceback, for each request that fails; we log that ourselves.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        names = {
            "service.name": settings.service_name,
            "service.version": version,
            "service.instance.id": node,
        }
        provider = TracerProvider(ALWAYS_ON, Resource.create(names), shutdown_on_exit=False)
        self._finished = FinishedSpans()
        provider.add_span_processor(self._finished)
        self._tracer = provider.get_tracer("fluxmq", version)

    def export(self, spans: Sequence[SpanRecord]) -> str:
        """Send spans, with repetitions within the timeout; return why that failed, empty if it did not."""
        for span in spans:
            self._make(span)
        if self._exporter.export(self._finished.take()) is SpanExportResult.SUCCESS:
            return ""
        return "the collector cannot be reached, or has refused them"

    def close(self) -> None:
        """Send nothing any more; a pause between two attempts ends at once."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _make(self, record: SpanRecord) -> None:
        context = SpanContext(
            int(record.trace_id, 16),
            int(record.span_id, 16),
            is_remote=True,
            trace_flags=TraceFlags(record.flags),
            trace_state=TraceState.from_header([record.state]) if record.state else None,
        )
        span = self._tracer.start_span(
            span_name(record),
            trace.set_span_in_context(NonRecordingSpan(context)),
            KINDS[record.stage],
            span_attributes(record),
            [Link(context)] if record.stage is SpanStage.DELIVER else None,
            start_time=record.start * _NS,
        )
        if record.outcome:
            span.set_status(Status(StatusCode.ERROR, error_type(record.outcome)))
        span.end(record.end * _NS)
