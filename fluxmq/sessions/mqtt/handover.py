"""Undelivered and unacked messages of a session, taken out for another shard or other group
members.

Off the hot path, so it works on the delivery's queues from outside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from fluxmq.protocols.mqtt.delivery import Delivery
from fluxmq.protocols.mqtt.portion import Portion


def drain(delivery: Delivery) -> list[Portion]:
    """Remove and return all undelivered and unacked messages, oldest first."""
    if delivery.connection is not None:
        delivery.detach()
    owed: list[Portion] = []
    if delivery.resend:
        owed.extend(delivery.resend)
    if delivery.pending:
        owed.extend(delivery.pending)
    delivery.pending = None
    delivery.flight = None
    delivery.resend = None
    delivery.released = None
    delivery.pending_count = 0
    delivery.pending_bytes = 0
    delivery.inflight = 0
    return owed


def abandon(delivery: Delivery) -> None:
    """Drop everything: the session has ended.

    Messages held elsewhere still refer to this delivery; it must not keep the session alive.
    """
    drain(delivery)
    delivery.session = None


def restore(
    delivery: Delivery, portions: list[Portion], released: list[int], next_pid: int
) -> None:
    """Take over another shard's messages; portions with an identifier were in flight."""
    delivery.pending = deque()
    delivery.flight = deque()
    delivery.resend = deque()
    delivery.released = dict.fromkeys(released) if released else None
    delivery.inflight = len(released)
    delivery.next_pid = next_pid
    delivery.free_until = 0
    for portion in portions:
        if portion.pid:
            delivery.resend.append(portion)
        else:
            delivery.pending.append(portion)
            delivery.pending_count += portion.count
            delivery.pending_bytes += delivery.weight(portion)


def give_up_shared(delivery: Delivery, movable: Callable[[Any], bool]) -> list[Portion]:
    """Take out messages of shared subscriptions that another member may get.

    ``movable`` tells whether a group has another member; other messages stay as they are, with
    their packet identifiers. QoS 2 messages already sent stay: they are completed with this client
    or, when its session ends, dropped. Source: MQTT 5.0 section 4.8.2.
    """
    given: list[Portion] = []
    if delivery.resend:
        kept: deque[Portion] = deque()
        for portion in delivery.resend:
            if portion.qos == 1 and portion.group is not None and movable(portion.group):
                portion.pid = 0
                given.append(portion)
            else:
                kept.append(portion)
        delivery.resend = kept
    if delivery.pending:
        kept = deque()
        for portion in delivery.pending:
            if portion.group is not None and movable(portion.group):
                delivery.pending_count -= portion.count
                delivery.pending_bytes -= delivery.weight(portion)
                given.append(portion)
            else:
                kept.append(portion)
        delivery.pending = kept
    return given
