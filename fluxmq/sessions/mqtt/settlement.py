"""Commands to a queue: PUBLISH to ``/$ack``, ``/$nack``, ``/$reject`` or ``/$commit``, decoded.

User properties select the messages; the payload is ignored: ``message-id`` as delivered
(``<queue>:<offset>``; the part before the last colon is for people), one or more, each also as a
range ``<queue>:<first>-<last>``; and ``group-id`` as delivered. The broker checks that the messages
are this client's. MQTT 3.1.1 has no properties and hence no commands.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluxmq.routing.queue_addresses import QueueAddress
from fluxmq.sessions.mqtt.queue_properties import (
    DELAY_MS_MAX,
    OFFSET_MAX,
    unusable,
    user_properties,
    whole_number,
)

REASON_BYTES_MAX: Final = 1024
"""Maximum size of a rejection's reason, which travels with the message: a sentence, not a
report."""


class SettlementCommand(NamedTuple):
    """Outcome of delivered messages.

    ``verb``: ``ack``, ``nack`` (redeliver after ``delay_ms``, None for the queue's own back-off),
    ``reject`` (dead-letter, with ``reason``) or ``commit`` (a stream's group has processed
    everything up to the one offset given). ``ranges``: first and last offset, inclusive, ascending,
    not adjacent.
    """

    queue: bytes
    group: bytes
    verb: str
    ranges: tuple[tuple[int, int], ...]
    reason: str = ""
    delay_ms: int | None = None


def parse_settlement(address: QueueAddress, forward: bytes) -> SettlementCommand:
    """Parse the command in a control publish. Raises ProtocolError (implementation specific error)
    if it is malformed."""
    intervals: list[tuple[int, int]] = []
    texts: dict[bytes, bytes] = {}
    for found in user_properties(forward):
        if found.name == b"message-id":
            intervals.append(_span(found.value))
        elif found.name in (b"group-id", b"reason", b"delay"):
            if found.name in texts:
                raise unusable(f"{found.name.decode()} stands twice")
            texts[found.name] = found.value
    group = texts.get(b"group-id", b"")
    if not intervals:
        raise unusable("message-id is missing")
    if not group:
        raise unusable("group-id is missing")
    reason = texts.get(b"reason", b"")
    if len(reason) > REASON_BYTES_MAX:
        raise unusable(f"reason is longer than {REASON_BYTES_MAX} bytes")
    delay = None
    if b"delay" in texts:
        if address.verb != "nack":
            raise unusable("delay is for $nack only")
        delay = whole_number(texts[b"delay"], "delay", DELAY_MS_MAX)
    ranges = merged(intervals)
    if address.verb == "commit" and (len(ranges) > 1 or ranges[0][0] != ranges[0][1]):
        raise unusable("$commit takes one message-id, the last one processed")
    return SettlementCommand(address.queue, group, address.verb, ranges, reason.decode(), delay)


def _span(message_id: bytes) -> tuple[int, int]:
    """Return first and last offset of ``<queue>:<offset>`` or ``<queue>:<first>-<last>``."""
    first, dash, last = message_id.rpartition(b":")[2].partition(b"-")
    start = whole_number(first, "the offset in message-id", OFFSET_MAX)
    end = whole_number(last, "the offset in message-id", OFFSET_MAX) if dash else start
    if end < start:
        raise unusable("a range in message-id ends before it begins")
    return start, end


def merged(intervals: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the same offsets as ascending ranges that are not adjacent."""
    ranges: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if ranges and first <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
        else:
            ranges.append((first, last))
    return tuple(ranges)
