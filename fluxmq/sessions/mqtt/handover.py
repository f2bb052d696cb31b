"""Undelivered and unacked messages of a session, taken out for another shard or other group
members.

Off the hot path, so it works on the delivery's queues from outside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from fluxmq.protocols.mqtt.delivery import SessionDelivery
from fluxmq.protocols.mqtt.inflight_range import InflightRange
from fluxmq.protocols.mqtt.ports import AnswerSink


def drain(delivery: SessionDelivery) -> list[InflightRange]:
    """Remove and return all undelivered and unacked messages, oldest first."""
    if delivery.connection is not None:
        delivery.detach()
    undelivered: list[InflightRange] = []
    if delivery.resend:
        undelivered.extend(delivery.resend)
    if delivery.pending:
        undelivered.extend(delivery.pending)
    delivery.pending = None
    delivery.unanswered_ranges = None
    delivery.resend = None
    delivery.released = None
    delivery.pending_count = 0
    delivery.pending_bytes = 0
    delivery.inflight = 0
    return undelivered


def abandon(delivery: SessionDelivery) -> None:
    """Drop everything: the session has ended.

    Messages held elsewhere still refer to this delivery; it must not keep the session alive.
    """
    drain(delivery)
    delivery.session = None


def restore(
    delivery: SessionDelivery,
    inflight_ranges: list[InflightRange],
    released: list[int],
    next_pid: int,
    sink: AnswerSink | None = None,
) -> None:
    """Take over another shard's messages; in-flight ranges with an identifier were in flight.
    ``sink`` is informed of ``released`` messages that are completed, by their identifiers."""
    delivery.pending = deque()
    delivery.unanswered_ranges = deque()
    delivery.resend = deque()
    delivery.released = None
    for packet_id in released:
        delivery.release(packet_id, 1, sink, packet_id)
    delivery.inflight = len(released)
    delivery.next_pid = next_pid
    delivery.free_until = 0
    for inflight in inflight_ranges:
        if inflight.pid:
            delivery.resend.append(inflight)
        else:
            delivery.pending.append(inflight)
            delivery.pending_count += inflight.count
            delivery.pending_bytes += delivery.weight(inflight)


def give_up_shared(
    delivery: SessionDelivery, movable: Callable[[Any], bool]
) -> list[InflightRange]:
    """Take out messages of shared subscriptions that another member may get.

    ``movable`` tells whether a group has another member; other messages stay as they are, with
    their packet identifiers. QoS 2 messages already sent stay: they are completed with this client
    or, when its session ends, dropped. Source: MQTT 5.0 section 4.8.2.
    """
    given: list[InflightRange] = []
    if delivery.resend:
        kept: deque[InflightRange] = deque()
        for inflight in delivery.resend:
            if inflight.qos == 1 and inflight.group is not None and movable(inflight.group):
                inflight.pid = 0
                given.append(inflight)
            else:
                kept.append(inflight)
        delivery.resend = kept
    if delivery.pending:
        kept = deque()
        for inflight in delivery.pending:
            if inflight.group is not None and movable(inflight.group):
                delivery.pending_count -= inflight.count
                delivery.pending_bytes -= delivery.weight(inflight)
                given.append(inflight)
            else:
                kept.append(inflight)
        delivery.pending = kept
    return given
