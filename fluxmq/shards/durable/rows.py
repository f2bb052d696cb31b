"""What a session is on disk: values of rows, and sessions made of them again.

Times are steady time there (seconds since the epoch, `fluxmq.model.steady`), since the monotonic clock ends with the machine
and a wall clock may be set; ``Clock`` goes between the two. A session that was connected when its shard died counts as left at the last moment known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgpack  # type: ignore[import-untyped]

from fluxmq._hot.run import Run
from fluxmq.net import frames
from fluxmq.sessions.mqtt.queue_subscriptions import QueueSubscription
from fluxmq.sessions.mqtt.session import Grant, Session, Will, filter_inside


class Clock:
    """Monotonic seconds to wall clock and back."""

    def __init__(self, now: Callable[[], float], wall: Callable[[], float]) -> None:
        self.now = now
        self.wall = wall

    def on_disk(self, monotonic: float) -> float:
        """A time as it is stored; 0 for none stays 0."""
        return monotonic - self.now() + self.wall() if monotonic else 0.0

    def here(self, wall: float) -> float:
        """The reverse; what has passed is a moment ago."""
        return max(wall - self.wall() + self.now(), 0.001) if wall else 0.0


def pack(values: object) -> bytes:
    """Plain values as bytes."""
    data: bytes = msgpack.packb(values, use_bin_type=True)
    return data


def unpack(data: bytes) -> Any:
    """The reverse of ``pack``."""
    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def will_values(will: Will | None) -> list[Any] | None:
    """A will as plain values."""
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
    ]


def grant_values(grant: Grant) -> list[Any]:
    """What a subscription was granted, as plain values: the arguments of ``Grant``."""
    return [
        grant.qos,
        grant.no_local,
        grant.retain_as_published,
        grant.subscription_id,
        grant.shared,
        None if grant.queue is None else list(grant.queue),
    ]


def grant_of(values: list[Any]) -> Grant:
    """The reverse of ``grant_values``."""
    *options, queue = values
    grant = Grant(*options)
    if queue is not None:
        name, group, pattern, qos, explicit, start, *rest = queue
        where = None if start is None else (start[0], start[1])
        grant.queue = QueueSubscription(name, group, pattern, qos, explicit, where, *rest)
    return grant


def group_members(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Group and filter of each subscription (as written, options) that a shared group has to keep messages for."""
    for written, options in rows:
        grant = grant_of(unpack(options))
        if grant.shared and grant.queue is None and grant.qos:
            yield grant.shared, filter_inside(written, grant)


def session_values(session: Session, clock: Clock, number: int, sent: int) -> bytes:
    """The row of a session. ``number``: of its next message; ``sent``: messages below it may have been sent."""
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
    """Give a session its row's state; the next message's number, and below which number messages may have been sent.

    ``alive``: the last moment (wall clock) at which the shard is known to have lived; a client that was connected then
    has left at that moment.
    """
    values = unpack(data)
    session.principal, session.expiry, connected, expires_at, will_at, will, number, sent = values
    if will is not None:
        session.will = Will(*will)
    if connected:
        expires_at = alive + session.expiry
        if session.will is not None:
            will_at = alive + min(session.will.delay, session.expiry)
        sent = 1 << 62
    session.expires_at = clock.here(expires_at)
    session.will_at = clock.here(will_at)
    return number, sent


def message_values(
    run: Run,
    offset: int,
    count: int,
    qos: int,
    retain: int,
    subscription_ids: bytes,
    group: Any,
    clock: Clock,
) -> bytes:
    """Messages owed to a session: the run's part as a frame, and how it is owed. ``group``: its shared group or None."""
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


def messages_of(data: bytes, clock: Clock) -> tuple[Run, int, int, bytes, list[bytes] | None]:
    """The reverse: run, QoS, retain, subscription identifiers, and name and filter of the shared group."""
    frame, deadline, qos, retain, subscription_ids, group = unpack(data)
    run = frames.decode_run(frame)
    run.deadline = clock.here(deadline)
    return run, qos, retain, subscription_ids, group
