"""A session as values: what moves to another shard when its client comes back there.

Everything that MQTT calls session state: subscriptions with options, messages in flight with their packet
identifiers, those that wait, QoS 2 identifiers in both directions, the will and what is left of its delay
and of the session's expiry. Times are the node's monotonic clock, which all shards share.
"""

from __future__ import annotations

from typing import Any

from fluxmq._hot.delivery import Delivery
from fluxmq._hot.portion import Portion
from fluxmq._hot.run import Run
from fluxmq.sessions.mqtt.handover import drain, restore
from fluxmq.sessions.mqtt.session import Grant, Session, Will
from fluxmq.shards import frames
from fluxmq.shards.groups import Group, GroupTable


def export_session(session: Session) -> list[Any]:
    """The session's state; its delivery is empty afterwards."""
    delivery = session.delivery
    released = list(delivery.released) if delivery.released else []
    portions = [export_portion(portion) for portion in drain(delivery)]
    will = session.will
    return [
        session.client_id,
        session.principal,
        session.expiry,
        session.expires_at,
        session.will_at,
        None
        if will is None
        else [
            will.topic,
            will.payload,
            will.qos,
            will.retain,
            will.properties,
            will.delay,
            will.expiry,
        ],
        [
            [
                written,
                grant.qos,
                grant.no_local,
                grant.retain_as_published,
                grant.subscription_id,
                grant.shared,
            ]
            for written, grant in session.subscriptions.items()
        ],
        sorted(session.received) if session.received else [],
        released,
        delivery.next_pid,
        portions,
    ]


def export_portion(portion: Portion) -> list[Any]:
    """Messages owed: the run's part as a frame, and how it is owed."""
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
    ]


def import_session(state: list[Any], delivery: Delivery, groups: GroupTable) -> Session:
    """A session from its state; subscriptions are entered by the caller."""
    session = Session(state[0], delivery)
    session.principal, session.expiry, session.expires_at, session.will_at = state[1:5]
    if state[5] is not None:
        session.will = Will(*state[5])
    for written, *options in state[6]:
        session.subscriptions[written] = Grant(*options)
    if state[7]:
        session.received = set(state[7])
    portions = [import_portion(values, groups) for values in state[10]]
    restore(delivery, portions, state[8], state[9])
    return session


def import_portion(values: list[Any], groups: GroupTable) -> Portion:
    """The reverse of ``export_portion``."""
    data, pid, count, qos, retain, subscription_ids, group = values
    run = frames.decode_run(data)
    found = groups.obtain(*group) if group is not None else None
    portion = Portion(run, run.start, count, qos, retain, subscription_ids, found)
    portion.pid = pid
    return portion
