"""The settings of traces: spans of messages, for OpenTelemetry. Data only."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fluxmq.settings.login_backends import HttpUrl
from fluxmq.settings.section import Section
from fluxmq.settings.values import Duration, FilePath, Secret


class Tracing(Section):
    """Spans of messages that carry a trace context (`traceparent`), sent to an OpenTelemetry collector."""

    enabled: bool = False
    """Record spans and send them; needs `pip install 'fluxmq-broker[otel]'`."""
    endpoint: HttpUrl = "http://127.0.0.1:4318/v1/traces"
    """Address that spans are sent to by OTLP over HTTP (protobuf), path included."""
    service_name: Annotated[str, Field(min_length=1, max_length=255)] = "fluxmq"
    """Name of this service in traces (`service.name`)."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the traces that their publishers sample of which spans are recorded; all nodes choose the same ones."""
    max_spans_per_second: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Spans that a shard records in a second; further ones are dropped and counted."""
    authorization: Secret | None = None
    """Value of the Authorization header of each request, such as `Bearer` and a token."""
    ca_file: FilePath | None = None
    """Certificates that the collector's is verified against, instead of the usual ones."""
    timeout: Annotated[Duration, Field(ge=0.1, le=60)] = 10.0
    """Time for the collector to take spans, repetitions included; spans that it has not taken then are dropped."""
