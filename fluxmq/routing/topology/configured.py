"""Conversion of configured queues to the topology.

Deviations from the defaults become arguments, as a client would have given them: a client that
declares the queue with equal ones succeeds, and policies are combined with them. Settings without
an AMQP argument are left to the engine.
"""

from __future__ import annotations

from typing import Any, Final

from fluxmq.routing.topology.names import DEFAULT_VHOST
from fluxmq.routing.topology.records import ORIGIN_SETTINGS, QueueRecord
from fluxmq.settings import queues as settings

STREAM: Final = "stream"


def configured_queue(queue: settings.QueueSettings, group: str = "") -> QueueRecord:
    """Return a queue of the settings file; ``group``: the replicated one to hold it, empty for one
    local to each node."""
    arguments = _of_stream(queue) if queue.type == STREAM else _of_work_queue(queue)
    return QueueRecord(
        DEFAULT_VHOST,
        queue.name,
        queue.type,
        durable=True,
        arguments=arguments,
        group=group,
        origin=ORIGIN_SETTINGS,
    )


def _of_work_queue(queue: settings.QueueSettings) -> dict[str, Any]:
    limits, default = queue.limits, settings.QueueLimits()
    arguments: dict[str, Any] = {}
    if queue.expires:
        arguments["x-expires"] = _milliseconds(queue.expires)
    if limits.message_ttl and limits.message_ttl != default.message_ttl:
        arguments["x-message-ttl"] = _milliseconds(limits.message_ttl)
    if limits.max_length:
        arguments["x-max-length"] = limits.max_length
    if limits.max_length_bytes:
        arguments["x-max-length-bytes"] = limits.max_length_bytes
    if limits.overflow != default.overflow:
        arguments["x-overflow"] = limits.overflow
    deliveries = queue.consumer.delivery_limit
    if queue.type == "quorum" and deliveries is not None:
        # The file counts deliveries, AMQP redeliveries.
        arguments["x-delivery-limit"] = max(deliveries - 1, -1)
    return arguments


def _of_stream(queue: settings.QueueSettings) -> dict[str, Any]:
    retention = queue.retention
    arguments: dict[str, Any] = {}
    if retention.max_age >= 1 and retention.max_age.is_integer():
        arguments["x-max-age"] = f"{int(retention.max_age)}s"
    if retention.max_length_bytes:
        arguments["x-max-length-bytes"] = retention.max_length_bytes
    return arguments


def _milliseconds(seconds: float) -> int:
    return max(round(seconds * 1000), 1)
