"""A session as values, to move to another shard when its client reconnects there.

Holds all MQTT session state: subscriptions with options, messages in flight with their packet
identifiers, pending ones, QoS 2 identifiers in both directions, the will and what is left of its
delay and of the session's expiry. Times are of the node's monotonic clock, which all shards share.
A session on disk stays there; the new shard continues its message numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluxmq.net import frames
from fluxmq.protocols.mqtt.delivery import Delivery
from fluxmq.protocols.mqtt.portion import Portion
from fluxmq.protocols.mqtt.run import Run
from fluxmq.sessions.mqtt.handover import drain, restore
from fluxmq.sessions.mqtt.session import Session, Will
from fluxmq.shards.durable.keeper import Owed, Released, SessionKeeper
from fluxmq.shards.durable.rows import grant_of, grant_values, will_values
from fluxmq.shards.groups import Group, GroupTable


def export_session(session: Session) -> list[Any]:
    """Return the session's state; its delivery is empty afterwards."""
    delivery = session.delivery
    released = list(delivery.released) if delivery.released else []
    keeper: SessionKeeper | None = delivery.durable
    # Drop identifiers that may not be on disk: the client sends those messages again.
    received = (session.received or set()) - (keeper.unwritten() if keeper else set())
    portions = [export_portion(portion) for portion in drain(delivery)]
    return [
        session.client_id,
        session.principal,
        session.expiry,
        session.expires_at,
        session.will_at,
        will_values(session.will),
        [[written, *grant_values(grant)] for written, grant in session.subscriptions.items()],
        sorted(received),
        released,
        delivery.next_pid,
        portions,
        None if keeper is None else keeper.number,
    ]


def export_portion(portion: Portion) -> list[Any]:
    """Return undelivered messages: their part of the run as a frame, and how to deliver it."""
    run: Run = portion.run
    end = run.skip(portion.offset, portion.count)
    piece = run.part(portion.offset, end, portion.count)
    data = frames.encode_run(piece) + bytes(memoryview(run.buffer)[portion.offset : end])
    group: Group | None = portion.group
    return [
        data,
        portion.pid,
        portion.count,
        portion.qos,
        portion.retain,
        portion.subscription_ids,
        None if group is None else [group.core.group, group.filter],
        export_owed(portion),
    ]


def import_session(
    state: list[Any],
    delivery: Delivery,
    groups: GroupTable,
    keep: Callable[[Session], SessionKeeper],
) -> Session:
    """Create a session from its state; the caller enters subscriptions. ``keep`` keeps it on
    disk."""
    session = Session(state[0], delivery)
    session.principal, session.expiry, session.expires_at, session.will_at = state[1:5]
    if state[5] is not None:
        session.will = Will(*state[5])
    for written, *options in state[6]:
        session.subscriptions[written] = grant_of(options)
    if state[7]:
        session.received = set(state[7])
    keeper = None
    if state[11] is not None:
        keeper = keep(session)
        keeper.number = state[11]
    known: dict[int, Owed] = {}
    portions = []
    for *values, owed in state[10]:
        portion = import_portion(values, groups)
        if keeper is not None and owed is not None:
            import_owed(portion, owed, keeper, known)
        portions.append(portion)
    restore(delivery, portions, state[8], state[9])
    if keeper is not None and delivery.released:
        delivery.released = {pid: (Released(keeper, pid), 0) for pid in state[8]}
    return session


def import_portion(values: list[Any], groups: GroupTable) -> Portion:
    """Reverse ``export_portion``."""
    data, pid, count, qos, retain, subscription_ids, group = values
    run = frames.decode_run(data)
    found = groups.obtain(*group) if group is not None else None
    portion = Portion(run, run.start, count, qos, retain, subscription_ids, found)
    portion.pid = pid
    return portion


def export_owed(portion: Portion) -> list[Any] | None:
    """Return the disk row's number, and the part of it, of a portion that is kept on disk."""
    owed = portion.settle
    if not isinstance(owed, Owed):
        return None
    return [portion.base, owed.number, owed.count, owed.front]


def import_owed(
    portion: Portion, values: list[Any], keeper: SessionKeeper, known: dict[int, Owed]
) -> None:
    """Reverse ``export_owed``; portions of one row share it by ``known``."""
    base, number, count, front = values
    owed = known.get(number)
    if owed is None:
        owed = Owed(
            keeper,
            number,
            count,
            None,
            portion.qos,
            portion.retain,
            portion.subscription_ids,
            portion.group,
        )
        owed.written = True
        owed.front = front
        known[number] = owed
    portion.settle = owed
    portion.base = base
