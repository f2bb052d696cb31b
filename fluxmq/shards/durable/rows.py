"""Sessions on disk: values of rows, and sessions restored from them.

Times are stored as steady time (seconds since the epoch, `fluxmq.model.steady`), since the
monotonic clock ends with the machine and a wall clock may be set; ``Clock`` converts between the
two. A session that was connected when its shard died counts as left at the last known moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgpack  # type: ignore[import-untyped]

from fluxmq.net import frames
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.sessions.mqtt.queue_subscriptions import QueueSubscription
from fluxmq.sessions.mqtt.session import Grant, Session, Will, filter_inside

WILL_VALUES = 8
"""Values of a will that all versions know."""


class Clock:
    """Conversion between monotonic seconds and wall clock."""

    def __init__(self, now: Callable[[], float], wall: Callable[[], float]) -> None:
        self.now = now
        self.wall = wall

    def on_disk(self, monotonic: float) -> float:
        """Return a time as it is stored; 0 for none stays 0."""
        return monotonic - self.now() + self.wall() if monotonic else 0.0

    def here(self, wall: float) -> float:
        """Return a stored time as monotonic seconds; a past time becomes just before now."""
        return max(wall - self.wall() + self.now(), 0.001) if wall else 0.0


def pack(values: object) -> bytes:
    """Encode plain values."""
    data: bytes = msgpack.packb(values, use_bin_type=True)
    return data


def unpack(data: bytes) -> Any:
    """Decode the result of ``pack``."""
    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def will_values(will: Will | None) -> list[Any] | None:
    """Return a will as plain values."""
    if will is None:
        return None
    return [
        will.topic,
        will.payload,
        will.qos,
        will.retain,
        will.properties,
        will.delay,
        will.expiry,
        will.without_user,
        *([will.backend] * bool(will.backend)),  # unknown to earlier versions
    ]


def will_of(values: list[Any]) -> Will:
    """Return the will of ``will_values``, also those of earlier versions."""
    will = Will(*values[:WILL_VALUES])
    will.backend = values[WILL_VALUES] if len(values) > WILL_VALUES else ""
    return will


def grant_values(grant: Grant) -> list[Any]:
    """Return a subscription's grant as plain values: the arguments of ``Grant``."""
    return [
        grant.qos,
        grant.no_local,
        grant.retain_as_published,
        grant.subscription_id,
        grant.shared,
        None if grant.queue is None else list(grant.queue),
    ]


def grant_of(values: list[Any]) -> Grant:
    """Return the grant of ``grant_values``."""
    *options, queue = values
    grant = Grant(*options)
    if queue is not None:
        name, group, pattern, qos, explicit, start, *rest = queue
        where = None if start is None else (start[0], start[1])
        grant.queue = QueueSubscription(name, group, pattern, qos, explicit, where, *rest)
    return grant


def group_members(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield group and filter of each subscription (as written, options) to keep messages for."""
    for written, options in rows:
        grant = grant_of(unpack(options))
        if grant.shared and grant.queue is None and grant.qos:
            yield grant.shared, filter_inside(written, grant)


def session_values(session: Session, clock: Clock, number: int, sent: int) -> bytes:
    """Return a session's row: ``number`` is its next message's; those below ``sent`` may be out."""
    return pack(
        [
            session.principal,
            session.expiry,
            session.client is not None,
            clock.on_disk(session.expires_at),
            clock.on_disk(session.will_at),
            will_values(session.will),
            number,
            sent,
        ]
    )


def restore_session(session: Session, data: bytes, clock: Clock, alive: float) -> tuple[int, int]:
    """Restore a session from its row; return the next message's number, and the number below which
    messages may have been sent.

    ``alive``: the last moment (wall clock) at which the shard is known to have lived; a client
    connected then counts as gone at that moment.
    """
    values = unpack(data)
    session.principal, session.expiry, connected, expires_at, will_at, will, number, sent = values
    if will is not None:
        session.will = will_of(will)
    if connected:
        expires_at = alive + session.expiry
        if session.will is not None:
            will_at = alive + min(session.will.delay, session.expiry)
        sent = 1 << 62
    session.expires_at = clock.here(expires_at)
    session.will_at = clock.here(will_at)
    return number, sent


def message_values(
    run: PublishRun,
    offset: int,
    count: int,
    qos: int,
    retain: int,
    subscription_ids: bytes,
    group: Any,
    clock: Clock,
) -> bytes:
    """Return the row of owed messages: part of a run and its terms. ``group`` may be None."""
    end = run.skip(offset, count)
    piece = run.part(offset, end, count)
    return pack(
        [
            frames.encode_run(piece) + bytes(memoryview(run.buffer)[offset:end]),
            clock.on_disk(run.deadline),
            qos,
            retain,
            subscription_ids,
            None if group is None else [group.core.group, group.filter],
        ]
    )


def messages_of(
    data: bytes, clock: Clock
) -> tuple[PublishRun, int, int, bytes, list[bytes] | None]:
    """Return run, QoS, retain, subscription identifiers, and the shared group's name and filter."""
    frame, deadline, qos, retain, subscription_ids, group = unpack(data)
    run = frames.decode_run(frame)
    run.deadline = clock.here(deadline)
    return run, qos, retain, subscription_ids, group
