"""Arguments of basic.consume, with RabbitMQ's error texts.

Start of a stream's consumer, ``x-stream-offset``: ``first``, ``last``, ``next``; an offset as
number or ``offset=<n>``; a timestamp, or ``timestamp=<n>`` in seconds or milliseconds since the
epoch; an interval back from now as text (``1h``; units Y, M, D, h, m, s).

Source: RabbitMQ's consumer priorities, single active consumers and streams.
"""

from __future__ import annotations

import re
from typing import Final

from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.protocols.amqp091.methods import BasicConsume
from fluxmq.routing.topology.arguments import (
    CLASSIC,
    QUORUM,
    STREAM,
    age_seconds,
    consumer_timeout,
)
from fluxmq.routing.topology.records import QUEUE, QueueRecord
from fluxmq.routing.topology.refusals import Refusal, named
from fluxmq.routing.topology.values import type_name
from fluxmq.sessions.amqp091 import refusals
from fluxmq.sessions.amqp091.channel import Channel
from fluxmq.sessions.amqp091.ports import ConsumeRequest
from fluxmq.sessions.amqp091.refusals import error_from, not_implemented, precondition

PRIORITY_MAX: Final = (1 << 31) - 1
"""Consumer priorities are clamped to 32 bits, above and below zero."""
SINGLE_ACTIVE: Final = "x-single-active-consumer"
FAILOVER_KEY: Final = "x-cancel-on-ha-failover"
OFFSET_MAX: Final = (1 << 63) - 1
SECONDS_MAX: Final = OFFSET_MAX // 1_000_000
"""Times are microseconds in 64 bits."""
MILLISECONDS_FROM: Final = 100_000_000_000
"""Timestamps from here on are milliseconds: as seconds they would be beyond the year 5000."""

_POSITIONS: Final = ("first", "last", "next")
_NUMBERED: Final = re.compile(r"(offset|timestamp)=([0-9]{1,19})")


def stream_start(value: object, queue: QueueRecord) -> tuple[str, int] | None:
    """Return the position and its number, see ``ports.ConsumeRequest``; None without the argument.

    Raises SoftError 406 for anything else.
    """
    if value is None:
        return None
    if isinstance(value, Timestamp):
        return "timestamp", min(int(value), SECONDS_MAX) * 1_000_000
    if isinstance(value, int) and not isinstance(value, bool):
        return "offset", min(max(value, 0), OFFSET_MAX)
    if isinstance(value, str):
        if value in _POSITIONS:
            return value, 0
        seconds = age_seconds(value)
        if seconds:
            return "interval", min(seconds, SECONDS_MAX) * 1_000_000
        found = _NUMBERED.fullmatch(value)
        if found is not None:
            number = int(found[2])
            if found[1] == "offset":
                return "offset", min(number, OFFSET_MAX)
            scale = 1000 if number >= MILLISECONDS_FROM else 1_000_000
            return "timestamp", min(number, OFFSET_MAX // scale) * scale
    expected = "first, last, next, an offset, a timestamp or an interval"
    what = named(QUEUE, queue.name, queue.vhost)
    raise _invalid("x-stream-offset", what, f"\"expected {expected}, got '{value}'\"")


def consumer_wanted(
    channel: Channel, method: BasicConsume, queue: QueueRecord, tag: str, prefetch: int, shared: int
) -> ConsumeRequest:
    """Return the request of basic.consume. Raises AmqpError for what this queue does not support.

    ``prefetch``: limit of the consumer; ``shared``: of all consumers of the channel; 0 for none.
    """
    arguments = method.arguments
    what = named(QUEUE, queue.name, queue.vhost)
    priority = arguments.get("x-priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        found = f'"expected integer, got {type_name(priority)}"'
        raise _invalid("x-priority", what, found)
    cancelled = _flag(arguments.get(FAILOVER_KEY, False), FAILOVER_KEY, what)
    stream = queue.type == STREAM
    if stream and not prefetch:
        raise precondition(f"consumer prefetch count is not set for '{what}'")
    if stream and method.no_ack:
        raise not_implemented(f"automatic acknowledgement not supported by stream queues {what}")
    if shared and queue.type in (STREAM, QUORUM):
        raise not_implemented(f"{what} does not support global qos")
    if method.exclusive and queue.arguments.get(SINGLE_ACTIVE) is True:
        raise error_from(refusals.exclusive_use(queue))
    try:
        timeout = consumer_timeout(arguments, what)
    except Refusal as refusal:
        raise error_from(refusal) from None
    if method.no_ack:
        prefetch = shared = 0
    owner = channel.client.info.owner
    return ConsumeRequest(
        queue,
        tag,
        f"{owner}:{channel.number}:{tag}",
        limit=min(prefetch, shared) if prefetch and shared else prefetch or shared,
        group=_text(arguments.get("x-consumer-group", ""), "x-consumer-group", what),
        priority=max(-PRIORITY_MAX, min(priority, PRIORITY_MAX)),
        exclusive=method.exclusive,
        auto_commit=_flag(arguments.get("x-auto-commit", True), "x-auto-commit", what),
        start=stream_start(arguments.get("x-stream-offset"), queue) if stream else None,
        filters=_filters(arguments.get("x-stream-filter"), what) if stream else (),
        timeout=timeout * 1000,
        asker=owner,
        # As in RabbitMQ, other types ignore it.
        cancel_on_failover=cancelled and queue.type == CLASSIC,
    )


def _invalid(key: str, what: str, why: str) -> SoftError:
    return precondition(f"invalid arg '{key}' for {what}: {why}")


def _text(value: object, key: str, what: str) -> str:
    if not isinstance(value, str):
        raise _invalid(key, what, f'"expected text, got {type_name(value)}"')
    return value


def _flag(value: object, key: str, what: str) -> bool:
    if not isinstance(value, bool):
        raise _invalid(key, what, f"{{unacceptable_type,{type_name(value)}}}")
    return value


def _filters(value: object, what: str) -> tuple[str, ...]:
    """Return the filters of a stream's consumer: one, or an array of them."""
    if value is None:
        return ()
    listed = value if isinstance(value, list) else [value]
    return tuple(_text(each, "x-stream-filter", what) for each in listed)
