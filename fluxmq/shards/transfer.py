"""A session as values, to move to another shard when its client reconnects there.

Holds all MQTT session state: subscriptions with options, messages in flight with their packet
identifiers, pending ones, QoS 2 identifiers in both directions, the will and what is left of its
delay and of the session's expiry. Times are of the node's monotonic clock, which all shards share.
A session on disk stays there; the new shard continues its message numbers. The identities of its
messages are there for `fluxmq.shards.expected_sessions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluxmq.net import frames
from fluxmq.protocols.mqtt.delivery import SessionDelivery
from fluxmq.protocols.mqtt.identifiers import IdentifierRanges, IdRange
from fluxmq.protocols.mqtt.inflight_range import InflightRange
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.sessions.mqtt.handover import drain, restore
from fluxmq.sessions.mqtt.session import Session
from fluxmq.shards.durable.rows import grant_of, grant_values, will_of, will_values
from fluxmq.shards.durable.session_journal import ReleasedMessages, SessionJournal, Undelivered
from fluxmq.shards.groups import GroupTable, SharedSubscription

GrantValues = list[list[Any]]
"""Subscriptions as written, each with the values of its grant."""


def export_session(session: Session) -> list[Any]:
    """Return the session's state; its delivery is empty afterwards."""
    delivery = session.delivery
    journal: SessionJournal | None = delivery.durable
    released = released_of(delivery)
    received = received_of(session)
    drained = drain(delivery)
    identities = [identity_of(inflight) for inflight in drained]
    inflight_ranges = [export_inflight(inflight) for inflight in drained]
    return [
        session.client_id,
        session.principal,
        session.expiry,
        session.expires_at,
        session.will_at,
        will_values(session.will),
        subscriptions_of(session),
        received,
        released,
        delivery.next_pid,
        inflight_ranges,
        None if journal is None else journal.number,
        identities,
        None if journal is None else received_rows_of(journal),
        None if journal is None else journal.released_rows.ranges.ranges(),
        None if journal is None else [dict(journal.seen.elsewhere), dict(journal.seen.here)],
        None if journal is None else dict(journal.receipts.rows),
    ]


def received_of(session: Session) -> list[int]:
    """Return the identifiers of received QoS 2 publishes, without those that may not be on disk:
    the client sends those messages again."""
    if session.received is None:
        return []
    journal: SessionJournal | None = session.delivery.durable
    unwritten = set() if journal is None else journal.unwritten()
    return [each for each in session.received.numbers() if each not in unwritten]


def received_rows_of(journal: SessionJournal) -> list[IdRange]:
    """Return the ranges of received identifiers that are on disk for certain; the next shard writes
    others again when their messages come again."""
    found = IdentifierRanges()
    for first, count in journal.received_rows.ranges.ranges():
        found.add(first, count)
    for packet_id in journal.unwritten():
        found.remove(packet_id, 1)
    return found.ranges()


def received_again(session: Session, packet_ids: list[int]) -> None:
    """Reverse ``received_of``."""
    received = IdentifierRanges()
    for packet_id in packet_ids:
        received.add(packet_id, 1)
    session.received = received if packet_ids else None


def released_of(delivery: SessionDelivery) -> list[int]:
    """Return the identifiers that await PUBCOMP, in the order of their PUBRECs."""
    ranges = [] if delivery.released is None else delivery.released.in_order()
    return [each for first, count in ranges for each in range(first, first + count)]


def subscriptions_of(session: Session) -> GrantValues:
    """Return a session's subscriptions as values."""
    return [[written, *grant_values(grant)] for written, grant in session.subscriptions.items()]


def identity_of(inflight: InflightRange) -> list[int] | None:
    """Return the identity of the run that undelivered messages are of; None if it has none, or if
    the messages were dealt to this session alone."""
    run: PublishRun = inflight.run
    if inflight.group is not None or run.identity is None:
        return None
    return [*run.identity, run.count]


def export_inflight(inflight: InflightRange) -> list[Any]:
    """Return undelivered messages: their part of the run as a frame, and how to deliver it."""
    run: PublishRun = inflight.run
    end = run.skip(inflight.offset, inflight.count)
    piece = run.part(inflight.offset, end, inflight.count)
    data = frames.encode_run(piece) + bytes(memoryview(run.buffer)[inflight.offset : end])
    group: SharedSubscription | None = inflight.group
    return [
        data,
        inflight.pid,
        inflight.count,
        inflight.qos,
        inflight.retain,
        inflight.subscription_ids,
        None if group is None else [group.core.group, group.filter],
        export_undelivered(inflight),
    ]


def import_session(
    state: list[Any],
    delivery: SessionDelivery,
    groups: GroupTable,
    keep: Callable[[Session], SessionJournal],
) -> Session:
    """Create a session from its state; the caller enters subscriptions. ``keep`` keeps it on
    disk."""
    session = Session(state[0], delivery)
    session.principal, session.expiry, session.expires_at, session.will_at = state[1:5]
    if state[5] is not None:
        session.will = will_of(state[5])
    for written, *options in state[6]:
        session.subscriptions[written] = grant_of(options)
    received_again(session, state[7])
    journal = None
    if state[11] is not None:
        journal = keep(session)
        journal.number = state[11]
        journal.received_rows.restore((first, count) for first, count in state[13])
        journal.released_rows.restore((first, count) for first, count in state[14])
        journal.seen.elsewhere, journal.seen.here = state[15]
        journal.receipts.restore({link: tuple(row) for link, row in state[16].items()})
    known: dict[int, Undelivered] = {}
    inflight_ranges = []
    for *values, undelivered in state[10]:
        inflight = import_inflight(values, groups)
        if journal is not None and undelivered is not None:
            import_undelivered(inflight, undelivered, journal, known)
        inflight_ranges.append(inflight)
    sink = None if journal is None else ReleasedMessages(journal)
    restore(delivery, inflight_ranges, state[8], state[9], sink)
    return session


def import_inflight(values: list[Any], groups: GroupTable) -> InflightRange:
    """Reverse ``export_inflight``."""
    data, pid, count, qos, retain, subscription_ids, group = values
    run = frames.decode_run(data)
    found = groups.obtain(*group) if group is not None else None
    inflight = InflightRange(run, run.start, count, qos, retain, subscription_ids, found)
    inflight.pid = pid
    return inflight


def export_undelivered(inflight: InflightRange) -> list[Any] | None:
    """Return the disk row's number, and the part of it, of an in-flight range that is kept on
    disk."""
    undelivered = inflight.settle
    if not isinstance(undelivered, Undelivered):
        return None
    settled = [] if undelivered.settled is None else undelivered.settled.ranges.ranges()
    number, count, front = undelivered.number, undelivered.count, undelivered.front
    return [inflight.base, number, count, front, settled]


def import_undelivered(
    inflight: InflightRange,
    values: list[Any],
    journal: SessionJournal,
    known: dict[int, Undelivered],
) -> None:
    """Reverse ``export_undelivered``; in-flight ranges of one row share it by ``known``."""
    base, number, count, front, settled = values
    undelivered = known.get(number)
    if undelivered is None:
        undelivered = Undelivered(
            journal,
            number,
            count,
            None,
            inflight.qos,
            inflight.retain,
            inflight.subscription_ids,
            inflight.group,
        )
        undelivered.written = True
        undelivered.front = front
        if settled:
            undelivered.settled_rows().restore((first, size) for first, size in settled)
        known[number] = undelivered
    inflight.settle = undelivered
    inflight.base = base
