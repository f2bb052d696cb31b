"""Names and attributes of spans. Pure.

Source: OpenTelemetry's semantic conventions 1.45 for messaging: spans.
"""

from __future__ import annotations

from typing import Final

from fluxmq.ipc.span_messages import SpanRecord, SpanStage
from fluxmq.model.outcomes import Outcome

OPERATIONS: Final = {
    SpanStage.ACCEPT: ("accept", "receive"),
    SpanStage.COMMIT: ("commit", ""),
    SpanStage.DELIVER: ("deliver", "send"),
}
"""Name and type of each stage's operation; storing a message has no type."""


def span_name(span: SpanRecord) -> str:
    """Return a span's name: operation and destination."""
    return f"{OPERATIONS[span.stage][0]} {span.destination}".rstrip()


def error_type(outcome: int) -> str:
    """Return the name of a commit's outcome; empty for success."""
    code = outcome & 0xFF  # the rest selects a text
    if code == Outcome.OK:
        return ""
    try:
        return Outcome(code).name.lower()
    except ValueError:
        return str(code)


def span_attributes(span: SpanRecord) -> dict[str, str | int]:
    """Return a span's attributes."""
    name, kind = OPERATIONS[span.stage]
    found: dict[str, str | int] = {
        "messaging.system": "fluxmq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": span.destination,
        "messaging.destination.subscription.name": ""
        if span.stage is SpanStage.COMMIT
        else span.queue,
        "messaging.client.id": span.client,
        "network.protocol.name": span.protocol,
        "error.type": error_type(span.outcome),
    }
    found = {key: value for key, value in found.items() if value}
    if span.messages > 1:
        found["messaging.batch.message_count"] = span.messages
    if span.receivers > 1:
        found["fluxmq.receivers"] = span.receivers
    if span.attempts > 1:
        found["fluxmq.delivery.attempts"] = span.attempts
    return found
