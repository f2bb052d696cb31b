"""User properties between MQTT 5 clients and queues, on publishes and deliveries.

Works on the encoded properties of a PUBLISH after their length, as ``parse_publish_properties``
leaves them: validated once, forwarded in order. Independent of sessions and queues; all are
functions of bytes.

Source: MQTT 5.0 section 2.2.2 (properties), 3.3.2.3.7 (user properties). ``x-delivery-count``
counts as RabbitMQ's does: deliveries before this one, 0 at the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from fluxmq.model import deduplication
from fluxmq.protocols.mqtt.message_properties import (
    RESERVED_NAMES,
    RESERVED_PREFIX,
    user_property,
)
from fluxmq.protocols.mqtt.reasons import ProtocolError, Reason

DELAY_MS_MAX: Final = 366 * 86_400_000
"""Longest delay of a message, a year: a longer one is a confusion of units."""
OFFSET_MAX: Final = (1 << 63) - 1

_USER_PROPERTY: Final = 0x26
_ONE_BYTE: Final = 0x01
_FORGED: Final = re.compile(
    rb"\x26..(?:%s)" % b"|".join(map(re.escape, [*sorted(RESERVED_NAMES), RESERVED_PREFIX])),
    re.DOTALL,
)
_STEERING: Final = re.compile(rb"x-delay|producer-id|x-deduplication-id")


class QueueOptions(NamedTuple):
    """A publisher's options for queues.

    ``delay_ms``: time before which the message is not delivered, 0 for none. ``producer``: number
    of the producer's name, 0 without deduplication; ``sequence`` its number of this message.
    """

    delay_ms: int
    producer: int
    sequence: int


class UserProperty(NamedTuple):
    """One user property: its encoding spans ``start`` to ``end``."""

    name: bytes
    value: bytes
    start: int
    end: int


def user_properties(forward: bytes) -> Iterator[UserProperty]:
    """Yield the user properties of a PUBLISH, in order. The bytes were validated before."""
    position, end = 0, len(forward)
    while position < end:
        start = position
        identifier = forward[position]
        position += 1
        if identifier == _ONE_BYTE:
            position += 1
            continue
        value_at = position + 2
        position = value_at + (forward[position] << 8 | forward[position + 1])
        if identifier == _USER_PROPERTY:
            name = forward[value_at:position]
            value_at = position + 2
            position = value_at + (forward[position] << 8 | forward[position + 1])
            yield UserProperty(name, forward[value_at:position], start, position)


def strip_reserved(forward: bytes) -> bytes:
    """Return a publish's properties without those reserved to queues; the rest unaltered and in
    order."""
    if _FORGED.search(forward) is None:
        return forward
    kept: list[bytes] = []
    kept_until = 0
    for found in user_properties(forward):
        if found.name in RESERVED_NAMES or found.name.startswith(RESERVED_PREFIX):
            kept.append(forward[kept_until : found.start])
            kept_until = found.end
    kept.append(forward[kept_until:])
    return b"".join(kept)


def queue_options(forward: bytes) -> QueueOptions | None:
    """Return the publisher's options for queues; None without any, the usual case.

    ``x-delay`` is in milliseconds. Duplicates are recognised by ``producer-id`` with ``sequence``,
    or by the equivalent ``x-deduplication-id: <producer>:<sequence>``. Raises ProtocolError
    (implementation specific error) for an invalid value.
    """
    if _STEERING.search(forward) is None:
        return None
    found: dict[bytes, bytes] = {}
    for item in user_properties(forward):
        if item.name in (b"x-delay", b"producer-id", b"sequence", b"x-deduplication-id"):
            if item.name in found:
                raise unusable("a queue property is given twice")
            found[item.name] = item.value
    delay = 0
    if b"x-delay" in found:
        delay = whole_number(found[b"x-delay"], "x-delay", DELAY_MS_MAX)
    name = found.get(b"producer-id")
    sequence = found.get(b"sequence")
    if b"x-deduplication-id" in found:
        if name is not None:
            raise unusable("producer-id and x-deduplication-id are mutually exclusive")
        name, _, sequence = found[b"x-deduplication-id"].rpartition(b":")
    if name is None:
        return QueueOptions(delay, 0, 0) if delay else None
    if sequence is None:
        raise unusable("producer-id without sequence")
    try:
        return QueueOptions(delay, *deduplication.identity(name, sequence))
    except ValueError as error:
        raise unusable(str(error)) from None


def whole_number(text: bytes, what: str, most: int) -> int:
    """Parse decimal digits. Raises ProtocolError naming ``what`` for anything else or above
    ``most``."""
    try:
        return deduplication.whole_number(text, what, most)
    except ValueError as error:
        raise unusable(str(error)) from None


def unusable(text: str) -> ProtocolError:
    """Return the error for an invalid property of our own: the request fails, the connection
    stays."""
    return ProtocolError(Reason.IMPLEMENTATION_SPECIFIC_ERROR, text)


def delivery_properties(
    group_id: bytes,
    queue: bytes,
    source_topic: bytes,
    attempts: int,
    forward: bytes,
    progress: tuple[bytes, int] | None = None,
) -> bytes:
    """Return the encoded properties, without length, that a run's deliveries have in common.

    ``message-id`` and ``offset`` differ by message and are added where the packets are made.
    ``attempts`` counts deliveries of these messages, this one included; 0 for a stream, which does
    not count. ``progress``: a stream's primary group and the offset up to which it has settled
    everything. ``forward``: the publisher's properties, which follow the queue's.
    """
    parts = [
        user_property(b"group-id", group_id),
        user_property(b"queue", queue),
        user_property(b"x-source-topic", source_topic),
    ]
    if attempts:
        parts.append(user_property(b"x-delivery-count", b"%d" % (attempts - 1)))
    if progress is not None:
        group, committed = progress
        parts.append(user_property(b"x-work-group", group))
        parts.append(user_property(b"x-work-committed-offset", b"%d" % committed))
    parts.append(forward)
    return b"".join(parts)
