"""Settings of a queue as values of the queue engine's ``QueueConfig``, by field: µs, bytes, counts.

Independent of the engine: a plain dict with its names. Defaults are those of queues declared by
AMQP: no limits except on the deliveries of a quorum queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fluxmq.routing.topology.arguments import CLASSIC, QUORUM, STREAM, age_seconds
from fluxmq.routing.topology.records import ORIGIN_SETTINGS, QueueRecord

TYPES: Final = {CLASSIC: 0, QUORUM: 1, STREAM: 2}
OVERFLOWS: Final = {"drop-head": 0, "reject-publish": 1, "reject-publish-dlx": 2}
DELIVERY_LIMIT: Final = 20
"""Default number of redeliveries of a quorum queue's message: RabbitMQ's since 4.0."""
CONSUMER_TIMEOUT_US: Final = 1_800_000_000
"""Time a delivered message may stay unacked: RabbitMQ's half hour."""
_KEPT: Final = (
    ("max-in-memory-length", "max_in_memory_length"),
    ("max-in-memory-bytes", "max_in_memory_bytes"),
    ("stream-max-segment-size-bytes", "max_segment_bytes"),
)
"""Storage limits of a queue, passed on as counts and bytes."""
_TIMES: Final = (
    ("message-ttl", "message_ttl"),
    ("expires", "expires"),
    ("consumer-timeout", "visibility_timeout"),
)
"""Settings in milliseconds."""
COUNT_MAX: Final = 1 << 50
"""Highest limit of messages or bytes that the engine takes; higher ones are clamped."""
MESSAGE_BYTES_MAX: Final = 1 << 30
"""Larger than any message that a session accepts."""


def queue_settings(
    queue: QueueRecord,
    effective: Mapping[str, Any],
    consumer_timeout_us: int = CONSUMER_TIMEOUT_US,
) -> dict[str, Any]:
    """Return the fields of a queue's configuration except its name.

    ``effective`` is `effective.effective` of the queue. For a queue of the settings file, only
    fields that a policy or an argument gives: the others are the file's.
    """
    given = _given(queue, effective)
    if queue.origin == ORIGIN_SETTINGS:
        return given
    return {
        "type": TYPES[queue.type],
        "max_message_size": MESSAGE_BYTES_MAX,
        "max_depth": 0,
        "message_ttl": 0,
        # Messages requeued by consumers are redelivered up to the delivery limit.
        "max_retries": COUNT_MAX,
        "visibility_timeout": consumer_timeout_us,
        "delivery_limit": DELIVERY_LIMIT + 1 if queue.type == QUORUM else 0,
        **given,
    }


def _given(queue: QueueRecord, effective: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, field in _TIMES:
        if key in effective:
            # 0 means never to the engine, at once to AMQP.
            fields[field] = max(effective[key] * 1000, 1)
    lengths = (
        # A stream drops by retention where a work queue drops by length.
        (("max-length-bytes", "retention_bytes"),)
        if queue.type == STREAM
        else (("max-length", "max_length"), ("max-length-bytes", "max_length_bytes"))
    )
    for key, field in (*lengths, *_KEPT):
        if key in effective:
            # 0 means unlimited to the engine; ``keeps_none`` is for a queue that keeps nothing.
            fields[field] = min(max(effective[key], 1), COUNT_MAX)
            if not effective[key] and field in ("max_length", "max_length_bytes"):
                fields["keeps_none"] = True
    if "max-age" in effective:
        fields["retention_age"] = age_seconds(effective["max-age"]) * 1_000_000
    if "overflow" in effective:
        fields["overflow"] = OVERFLOWS[effective["overflow"]]
    if "delivery-limit" in effective:
        # The limit counts redeliveries, the engine all deliveries: one more.
        fields["delivery_limit"] = min(effective["delivery-limit"] + 1, COUNT_MAX)
    for key in ("single-active-consumer", "max-priority"):
        if key in effective:
            fields[key.replace("-", "_")] = effective[key]
    fields.update(_dead_letters(queue, effective))
    return fields


def _dead_letters(queue: QueueRecord, effective: Mapping[str, Any]) -> dict[str, Any]:
    if "dead-letter-exchange" not in effective:
        return {}
    safely = (
        queue.type == QUORUM
        and effective.get("dead-letter-strategy") == "at-least-once"
        # With drop-head a queue would have to drop what it must keep: RabbitMQ falls back as well.
        and effective.get("overflow") == "reject-publish"
    )
    return {
        "dead_letter": True,
        "dead_letter_exchange": effective["dead-letter-exchange"],
        "dead_letter_routing_key": effective.get("dead-letter-routing-key"),
        "dead_letter_at_least_once": safely,
    }
