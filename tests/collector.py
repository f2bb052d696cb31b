"""A collector of OpenTelemetry: takes spans by OTLP over HTTP, and keeps them.

Its page is served by a thread; what it answers can be changed.
"""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


class TakenSpan(NamedTuple):
    """A span as it has arrived; ids are hexadecimal."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent: str
    state: str
    start: int
    end: int
    failed: bool
    links: tuple[tuple[str, str], ...]
    attributes: dict[str, str | int]
    resource: dict[str, str | int]


def plain(value: AnyValue) -> str | int:
    """An attribute's value."""
    found: str | int = getattr(value, value.WhichOneof("value") or "string_value")
    return found


def spans_of(request: ExportTraceServiceRequest) -> Iterator[TakenSpan]:
    """The spans of a request."""
    for of_resource in request.resource_spans:
        resource = {each.key: plain(each.value) for each in of_resource.resource.attributes}
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield TakenSpan(
                    span.name,
                    span.kind,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.trace_state,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.status.code == 2,
                    tuple((each.trace_id.hex(), each.span_id.hex()) for each in span.links),
                    {each.key: plain(each.value) for each in span.attributes},
                    resource,
                )


class Collector:
    """Spans taken so far, and headers of requests. ``status``: the answer."""

    def __init__(self) -> None:
        self.spans: list[TakenSpan] = []
        self.requests: list[dict[str, str]] = []
        self.status = 200
        self.endpoint = ""

    def of(self, trace_id: str) -> dict[str, TakenSpan]:
        """The spans of a trace, by name."""
        return {span.name: span for span in list(self.spans) if span.trace_id == trace_id}


@contextmanager
def collector() -> Iterator[Collector]:
    """Run one on a port of its own."""
    made = Collector()

    class Page(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            made.requests.append({name.lower(): value for name, value in self.headers.items()})
            answer = ExportTraceServiceResponse().SerializeToString()
            if made.status == 200:
                made.spans.extend(spans_of(ExportTraceServiceRequest.FromString(body)))
            with suppress(ConnectionError):
                self.send_response(made.status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    made.endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
