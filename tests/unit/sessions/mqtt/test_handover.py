"""What a session is owed, taken out and put back from outside its delivery."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import pytest

from fluxmq.net import sockets
from fluxmq.protocols.connection import Connection, Tally
from fluxmq.protocols.mqtt.delivery import EVICT, SessionDelivery
from fluxmq.protocols.mqtt.inflight_range import InflightRange
from fluxmq.protocols.mqtt.run import message_run
from fluxmq.sessions.mqtt.handover import abandon, drain, give_up_shared, restore


def delivery(window: int = 10) -> SessionDelivery:
    """A session's delivery, its client connected."""
    tally = Tally()
    found = SessionDelivery(tally, 100, 100, 1 << 20, EVICT)
    connection = Connection(-1, tally, [], 1 << 20, sockets.send)
    connection.version = 4
    found.attach(connection, window)
    return found


def owe(target: SessionDelivery, *kinds: tuple[int, object]) -> None:
    """Queue one message per (qos, group)."""
    for qos, group in kinds:
        target.enqueue(message_run(b"t", b"%d" % qos, qos, 0), qos, 0, b"", group)


def shape(inflight_ranges: Iterable[InflightRange]) -> list[tuple[int, int, int]]:
    """QoS, identifier and count of in-flight ranges."""
    return [(inflight.qos, inflight.pid, inflight.count) for inflight in inflight_ranges]


def test_drain_takes_everything_oldest_first() -> None:
    source = delivery(window=2)
    owe(source, (1, None), (2, None), (1, None))
    assert shape(drain(source)) == [(1, 1, 1), (2, 2, 1), (1, 0, 1)]
    assert source.connection is None
    assert (source.inflight, source.pending_count, source.pending_bytes) == (0, 0, 0)
    assert drain(source) == []


def test_restore_continues_where_drain_stopped() -> None:
    source = delivery(window=2)
    owe(source, (1, None), (2, None), (1, None))
    target = SessionDelivery(Tally(), 100, 100, 1 << 20, EVICT)
    restore(target, drain(source), [7, 9], 3)
    assert target.inflight == 2
    assert target.pending_count == 1
    assert target.pending_bytes > 0
    connection = Connection(-1, target.tally, [], 1 << 20, sockets.send)
    connection.version = 4
    target.attach(connection, 10)
    out = bytes(connection.out or b"")
    assert out.startswith(b"\x62\x02\x00\x07\x62\x02\x00\x09"), "PUBRELs first"
    kinds = [packet[0] for packet in split(out[8:])]
    assert kinds == [0x3A, 0x3C, 0x32], "then again what was in flight, then what waited"
    assert target.inflight == 5


def split(data: bytes) -> list[bytes]:
    """Packets with a length of one byte."""
    found = []
    while data:
        size = 2 + data[1]
        found.append(data[:size])
        data = data[size:]
    return found


def test_abandon_leaves_nothing() -> None:
    source = delivery(window=1)
    owe(source, (1, None), (2, None))
    source.session = object()
    abandon(source)
    assert source.session is None
    assert not source.pending
    assert not source.unanswered_ranges
    assert not source.resend
    assert source.pending_bytes == 0


@pytest.mark.parametrize("away", [True, False])
def test_only_what_may_move_is_given_up(away: bool) -> None:
    """QoS 1 in flight and everything that waits, of groups with somebody to take over."""
    mine, others = object(), object()
    source = delivery(window=4)
    kinds = [(1, mine), (2, mine), (1, others), (1, None)]
    owe(source, *kinds, *kinds)
    if away:
        source.detach()
    given = give_up_shared(source, lambda group: group is mine)
    if away:
        assert shape(given) == [(1, 0, 1), (1, 0, 1), (2, 0, 1)]
        assert source.resend is not None
        assert shape(source.resend) == [(2, 2, 1), (1, 3, 1), (1, 4, 1)]
    else:
        assert shape(given) == [(1, 0, 1), (2, 0, 1)]
    assert source.pending is not None
    assert shape(source.pending) == [(1, 0, 1), (1, 0, 1)]
    assert source.pending_count == 2
    assert source.pending_bytes == sum(source.weight(inflight) for inflight in source.pending)


def test_nothing_to_give_up() -> None:
    source = SessionDelivery(Tally(), 100, 100, 1 << 20, EVICT)
    assert give_up_shared(source, lambda _: True) == []
    source.pending = deque()
    assert give_up_shared(source, lambda _: True) == []
