"""Messages about spans of traced messages.

::

    shard -> control   spans: what has happened to messages with a trace context

Pure, like `messages`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from fluxmq.ipc.messages import MessageBody, Natural

SPANS: Final = "spans"
SPANS_MAX: Final = 500
"""Spans in a request: its size stays below 1 MiB."""
TEXT_MAX: Final = 255
"""Characters of a name in a span; a longer one, such as an MQTT topic, is cut."""

Text = Annotated[str, Meta(max_length=TEXT_MAX)]


class SpanStage(IntEnum):
    """Stages of a message that are spans."""

    ACCEPT = 0
    COMMIT = 1
    DELIVER = 2


class SpanRecord(Struct, frozen=True, array_like=True):
    """A stage of messages that share a trace context. ``start`` and ``end``: µs since the epoch.

    ``trace_id`` and ``span_id``: hexadecimal, those of the publisher's span, with its ``flags`` and ``state``.
    ``protocol``: of the client; empty for a commit. ``destination``: topic, or exchange and routing key. ``queue``:
    empty for MQTT's subscribers. ``client``: MQTT client id, or a consumer's tag. ``messages``: their number;
    ``receivers``: sessions that they were delivered to. ``attempts``: deliveries so far, with this one. ``outcome``:
    reason of a commit that has failed, else 0.
    """

    stage: SpanStage
    trace_id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    span_id: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    flags: Annotated[int, Meta(ge=0, le=255)]
    state: Annotated[str, Meta(max_length=512)]
    start: int
    end: int
    destination: Text = ""
    protocol: Text = ""
    queue: Text = ""
    client: Text = ""
    messages: Natural = 1
    receivers: Natural = 0
    attempts: Natural = 0
    outcome: Natural = 0


class SpanBatch(MessageBody, frozen=True):
    """Spans of a shard, in the order of their ends."""

    spans: Annotated[tuple[SpanRecord, ...], Meta(max_length=SPANS_MAX)]
