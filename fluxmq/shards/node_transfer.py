"""A persistent session as values, to move to another node.

Between the nodes nothing is shared: times are sent as seconds that are left, messages with their
bytes, to be written to the other node's disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fluxmq.protocols.mqtt.delivery import SessionDelivery
from fluxmq.protocols.mqtt.inflight_range import InflightRange
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.sessions.mqtt.handover import restore
from fluxmq.sessions.mqtt.session import Session
from fluxmq.shards.durable.rows import grant_of, will_of, will_values
from fluxmq.shards.durable.session_journal import ReleasedMessages, SessionJournal, Undelivered
from fluxmq.shards.groups import GroupTable
from fluxmq.shards.transfer import (
    export_inflight,
    identity_of,
    import_inflight,
    received_again,
    received_of,
    released_of,
    subscriptions_of,
)


def state_of(session: Session, now: float) -> list[Any]:
    """Return a session's state without its messages. Its client is away."""
    delivery = session.delivery
    journal: SessionJournal = delivery.durable
    return [
        session.principal,
        session.expiry,
        max(session.expires_at - now, 0.001) if session.expires_at else 0.0,
        max(session.will_at - now, 0.001) if session.will_at else 0.0,
        will_values(session.will),
        subscriptions_of(session),
        received_of(session),
        released_of(delivery),
        delivery.next_pid,
        journal.number,
    ]


def unanswered_of(session: Session, now: float) -> Iterable[list[Any]]:
    """Yield what a session's client has not answered, in order, each with the message's identity
    and the seconds until it expires."""
    delivery = session.delivery
    for queue in (delivery.resend, delivery.pending):
        for inflight in queue or ():
            if inflight.queued:
                continue  # it is the queue's again
            run: PublishRun = inflight.run
            left = max(run.deadline - now, 0.001) if run.deadline else 0.0
            for piece in _singly(inflight):
                yield [*export_inflight(piece)[:-1], piece.base, identity_of(piece), left]


def _singly(inflight: InflightRange) -> Iterator[InflightRange]:
    """Yield undelivered messages as a node of the release before keeps them: those of QoS 2 one by
    one."""
    if inflight.qos < 2:
        yield inflight
        return
    offset = inflight.offset
    for index in range(inflight.count):
        piece = InflightRange(
            *(inflight.run, offset, 1, inflight.qos, inflight.retain),
            *(inflight.subscription_ids, inflight.group),
        )
        piece.pid = inflight.pid + index if inflight.pid else 0
        piece.base = inflight.base + index
        yield piece
        offset = inflight.run.skip(offset, 1)


def session_of(
    client_id: str,
    state: list[Any],
    messages: list[list[Any]],
    delivery: SessionDelivery,
    groups: GroupTable,
    keep: Callable[[Session], SessionJournal],
    now: float,
) -> Session:
    """Return a session with its state, all of which is written to this node's disk. ``keep`` begins
    to keep it. Raises ValueError, or what a malformed value raises."""
    session = Session(client_id, delivery)
    session.principal, session.expiry, expires_in, will_in, will, subscriptions, *rest = state
    received, released, next_pid, number = rest
    session.expires_at = now + expires_in if expires_in else 0.0
    session.will_at = now + will_in if will_in else 0.0
    session.will = None if will is None else will_of(will)
    for written, *options in subscriptions:
        session.subscriptions[written] = grant_of(options)
    received_again(session, received)
    journal = keep(session)
    journal.home.wipe(client_id)
    journal.number = number
    inflight_ranges = [_arrived(journal, values, groups, now) for values in messages]
    restore(delivery, inflight_ranges, released, next_pid, ReleasedMessages(journal))
    for first, count in session.received.ranges() if session.received is not None else ():
        journal.received_rows.add(first, count)
    for first, count in delivery.released.in_order() if delivery.released is not None else ():
        journal.released_rows.add(first, count)
    journal.write_everything()
    return session


def _arrived(
    journal: SessionJournal, values: list[Any], groups: GroupTable, now: float
) -> InflightRange:
    *plain, base, _, left = values
    inflight = import_inflight(plain, groups)
    run = inflight.run
    run.deadline = now + left if left else 0.0
    if inflight.qos:
        undelivered = Undelivered(
            *(journal, base, inflight.count, run, inflight.qos, inflight.retain),
            *(inflight.subscription_ids, inflight.group),
        )
        undelivered.write()
        inflight.settle = undelivered
        inflight.base = base
    return inflight
