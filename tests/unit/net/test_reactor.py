"""The loop body of a shard: gathering, pausing, bounds, closing, one write per connection and tick."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from fluxmq.net.reactor import ANSWERS_MAX, EVENTS_MAX, PAUSED_LINK, PAUSED_OUTPUT, TICKS_MAX
from fluxmq.net.route import Route
from fluxmq.protocols.mqtt.codec import encode
from fluxmq.protocols.mqtt.delivery import Target
from fluxmq.protocols.mqtt.packets import Connect, Publish, Subscribe, Subscription
from fluxmq.protocols.mqtt.properties import Properties
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.sessions.mqtt.outcomes import Cause
from tests.unit.net.shard import Peer, Shard
from tests.unit.protocols.mqtt.wire import cut, puback, publish, read, read_all

Shards = Callable[..., Shard]

PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


def payloads(peer: Peer) -> list[bytes]:
    """Payloads of the publishes received since the last look."""
    found = [read(packet, peer.version) for packet in peer.packets()]
    return [packet.payload for packet in found if isinstance(packet, Publish)]


# Pausing


class Hesitant:
    """Peers that take their time to learn of subscriptions."""

    known: Callable[[], None] | None = None

    def when_known(self, done: Callable[[], None]) -> None:
        self.known = done


@pytest.mark.parametrize("late", [False, True])
def test_what_follows_a_pause_is_handled_after_it_in_order(shard: Shards, late: bool) -> None:
    """Bytes received before the pause and bytes still in the socket alike."""
    one = Shard()
    peers = one.broker.peers = Hesitant()
    try:
        peer = one.connect("p")
        wanted = encode(Subscribe(1, [Subscription(b"t", 0)]), 4)
        rest = PINGREQ + publish(b"t", b"1", 1, 5) + publish(b"t", b"2") + PINGREQ[:1]
        peer.send(wanted + (b"" if late else rest))
        one.settle()
        if late:
            peer.send(rest)
            one.settle()
            assert peer.connection.deaf, "the poll set would report the bytes again and again"
        assert peer.received == b""
        assert peers.known is not None
        peers.known()
        peer.send(PINGREQ[1:])
        one.settle()
        kinds = [packet[0] for packet in cut(peer.received)[0]]
        assert kinds == [0x90, 0xD0, 0x30, 0x40, 0x30, 0xD0] or kinds == [
            *(0x90, 0xD0, 0x40, 0x30, 0x30, 0xD0)
        ]
    finally:
        one.close_all()


def test_a_pause_for_two_reasons_ends_with_both(shard: Shards) -> None:
    one = shard()
    peer = one.connect("p")
    one.broker.connections.pause(peer.connection)
    one.reactor.pause(peer.connection, PAUSED_LINK)
    peer.send(PINGREQ)
    one.settle()
    one.broker.connections.resume(peer.connection)
    one.settle()
    assert peer.received == b""
    one.reactor.resume(peer.connection, PAUSED_LINK)
    one.settle()
    assert peer.received == PINGRESP


class Link:
    """A way to another shard that is full from the second run on, and the inbox of this one."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.runs: list[PublishRun] = []
        self.slept = 0

    def send_run(self, run: PublishRun) -> None:
        run.detach()
        self.runs.append(run)
        self.shard.reactor.link_full = len(self.runs) > 1

    def receive(self) -> int:
        return 0

    def ready(self) -> list[Link]:
        return [self]

    def sleep(self) -> bool:
        self.slept += 1
        return self.slept > 1


def test_a_full_link_stops_the_reading_of_who_feeds_it(shard: Shards) -> None:
    one = shard()
    link = Link(one)
    one.links.append(link)
    one.reactor.inbox = link
    peer, other = one.connect("p"), one.connect("o")
    # Three topics: three runs in one reading.
    peer.send(b"".join(publish(topic, b"x", 1, 1) for topic in (b"a", b"b", b"c")))
    one.settle()
    assert [run.topic for run in link.runs] == [b"a", b"b"]
    assert peer.received == puback(1, 1)
    other.send(PINGREQ)
    one.settle()
    assert other.received == PINGRESP
    link.runs.clear()
    one.reactor.resume(peer.connection, PAUSED_LINK)
    one.settle()
    assert [run.topic for run in link.runs] == [b"c"]


def test_a_record_that_came_before_the_wait_asks_for_a_tick(shard: Shards) -> None:
    one = shard()
    one.reactor.inbox = Link(one)
    one.scheduled = False
    one.reactor.run_ready()
    assert one.scheduled
    one.scheduled = False
    one.reactor.run_ready()
    assert not one.scheduled


# Bounds


def test_a_client_that_does_not_read_its_answers_is_not_read(shard: Shards) -> None:
    one = shard(output_limit=10_000, receive_bytes=65_536)
    peer = one.open(send_buffer=4096)
    peer.send(encode(Connect("p", version=4), 4))
    one.settle()
    peer.received.clear()
    connection = peer.connection
    asked = 0
    while not connection.paused & PAUSED_OUTPUT:
        asked += peer.socket.send(PINGREQ * 30_000)
        one.settle(read=False)
        assert connection.size <= 10_000 + ANSWERS_MAX + 65_536
        assert asked < 2 * ANSWERS_MAX + (1 << 20)
    peer.send(PINGREQ * 5)  # waits in the socket; sending it takes what was written meanwhile
    asked += 10
    one.settle()
    assert not connection.paused
    assert connection.size == 0
    assert bytes(peer.received) == PINGRESP * (asked // 2)


def test_messages_for_a_slow_client_do_not_stop_the_reading(shard: Shards) -> None:
    one = shard(output_limit=10_000)
    subscriber, publisher = one.connect("s"), one.connect("p")
    subscriber.subscribe(b"#")
    for _ in range(100):
        publisher.send(publish(b"t", bytes(20_000)))
        one.settle(read=False)
    assert subscriber.connection.size < 10_000 + 20_100
    assert one.reactor.tally.dropped_slow > 0
    assert not subscriber.connection.paused
    subscriber.send(PINGREQ)
    one.settle()
    one.settle()
    assert subscriber.received.endswith(PINGRESP)
    delivered = len(payloads(subscriber))
    assert delivered + one.reactor.tally.dropped_slow == 100


def test_a_call_of_the_loop_takes_a_bounded_number_of_ticks(shard: Shards) -> None:
    one = shard()
    fds = [os.eventfd(1) for _ in range(4)]
    called: list[int] = []
    for fd in fds:
        one.reactor.watch(fd, lambda: called.append(1))
    before = one.reactor.tally.ticks
    one.reactor.run_ready()
    assert one.reactor.tally.ticks - before == TICKS_MAX
    assert len(called) == TICKS_MAX * len(fds)
    for fd in fds:
        os.close(fd)


def test_an_error_in_a_callback_leaves_the_reactor_usable(shard: Shards) -> None:
    one = shard()
    fd = os.eventfd(1)

    def broken() -> None:
        os.eventfd_read(fd)
        raise RuntimeError("no")

    one.reactor.watch(fd, broken)
    with pytest.raises(RuntimeError):
        one.reactor.run_ready()
    assert not one.reactor.ticking
    one.connect("p")
    os.close(fd)


def test_many_sockets_all_get_their_turn(shard: Shards) -> None:
    one = shard(max_sessions=1000)
    peers = [one.open() for _ in range(EVENTS_MAX // 2)]
    for number, peer in enumerate(peers):
        peer.send(encode(Connect(f"c{number}", version=4), 4) + PINGREQ)
    one.settle()
    assert {bytes(peer.received) for peer in peers} == {b"\x20\x02\x00\x00" + PINGRESP}


def test_the_cache_of_routes_is_bounded(shard: Shards) -> None:
    one = shard()
    publisher = one.connect("p")
    for number in range(200):
        publisher.send(publish(b"t/%d" % number, b"x") * 2 + publish(b"same", b"x"))
    one.settle()
    assert len(one.reactor.routes) <= 64
    tally = one.reactor.tally
    assert tally.route_hits + tally.route_misses == tally.runs == 400
    assert tally.route_misses < 220


# What a run leads to


def test_one_write_per_connection_and_tick(shard: Shards) -> None:
    """Each write is a record on this kind of socket."""
    one = shard()
    subscriber, publisher = one.connect("s"), one.connect("p")
    subscriber.subscribe(b"#", 1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    os.dup2(ours.fileno(), subscriber.connection.fd)
    ours.close()
    data = b"".join(
        publish(b"t%d" % (index % 3), b"x", index % 2, index + 1 if index % 2 else 0)
        for index in range(60)
    )
    publisher.send(data)
    one.reactor.tick()
    record = theirs.recv(1 << 20)
    assert len(read_all(record, 4)) == 60
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    publisher.take()
    assert bytes(publisher.received) == puback(*range(2, 61, 2))
    theirs.close()


def test_no_local(shard: Shards) -> None:
    one = shard()
    first, second = one.connect("1"), one.connect("2")

    def target(peer: Peer, no_local: bool) -> Target:
        return Target(one.sessions[peer.name].delivery, 1, no_local, False, b"")

    with_own = target(first, True)
    with_own.own = Target(one.sessions["1"].delivery, 0, False, False, b"")
    for targets, expected in (
        ([target(first, True), target(second, True)], [(None, 1), (1, None)]),
        ([with_own, target(second, False)], [(0, 1), (1, 1)]),
    ):
        one.reactor.routes[b"t"] = Route(targets, [], [], [])
        for publisher, wanted in zip((first, second), expected, strict=True):
            publisher.send(publish(b"t", b"x", 1, 9))
            one.settle()
            for peer, qos in zip((first, second), wanted, strict=True):
                found = [read(packet, 4) for packet in peer.packets()]
                got = [packet.qos for packet in found if isinstance(packet, Publish)]
                assert got == ([] if qos is None else [qos])


def test_many_targets_share_one_copy(shard: Shards) -> None:
    one = shard()
    subscribers = [one.connect(f"s{number}") for number in range(3)]
    for each in subscribers:
        each.subscribe(b"#")
    publisher = one.connect("p")
    publisher.send(publish(b"t", bytes(10_000)))
    one.reactor.readable(publisher.connection)
    written = [each.connection.chunks for each in subscribers]
    assert [len(chunks or []) for chunks in written] == [1, 1, 1]
    assert len({id(chunks[0]) for chunks in written if chunks}) == 1
    one.settle()
    assert [len(payloads(each)) for each in subscribers] == [1, 1, 1]


def test_quality_of_service_above_the_servers_is_an_error(shard: Shards) -> None:
    one = shard()
    one.reactor.max_qos = 1
    peer = one.connect("p", 5)
    peer.send(publish(b"t", b"x", 1, 1, 5) + publish(b"t", b"x", 2, 2, 5) + PINGREQ)
    one.settle()
    assert one.errors == {0x9B: 1}
    assert bytes(peer.received) == puback(1) + b"\xe0" + peer.received[5:]
    assert peer.closed


@pytest.mark.parametrize(
    ("topic", "reason"), [(b"a/#", 0x90), (b"+", 0x90), (b"a\x00b", 0x81), (b"\xff", 0x81)]
)
def test_a_bad_topic_is_an_error(shard: Shards, topic: bytes, reason: int) -> None:
    one = shard()
    peer = one.connect("p", 5)
    body = len(topic).to_bytes(2, "big") + topic + b"\x00x"
    peer.send(bytes((0x30, len(body))) + body)
    one.settle()
    assert one.errors == {reason: 1}
    assert peer.closed


# The beginning and the end of connections


@pytest.mark.parametrize(
    "data",
    [
        publish(b"t", b"x"),
        publish(b"t", b"x", 1, 1) * 3,
        puback(1, 2),
        PINGREQ,
        encode(Subscribe(1, [Subscription(b"#", 0)]), 4),
        b"\x10" + b"\xff\xff\xff\xff\x01",
    ],
)
def test_nothing_comes_before_connect(shard: Shards, data: bytes) -> None:
    one = shard()
    watcher = one.connect("w")
    watcher.subscribe(b"#")
    peer = one.open()
    peer.send(data + encode(Connect("p", version=4), 4))
    one.settle()
    assert peer.closed
    assert peer.received == b""
    assert watcher.received == b""
    assert sum(one.errors.values()) == 1


def test_the_first_packet_is_bounded(shard: Shards) -> None:
    one = shard()
    peer = one.open()
    peer.send(b"\x10\x81\x40")  # 8193 bytes
    one.settle()
    assert peer.closed
    assert one.errors == {0x95: 1}


def test_packets_are_bounded_and_refused_by_their_length_alone(shard: Shards) -> None:
    one = shard(max_packet=10_000)
    peer = one.connect("p", 5)
    peer.send(publish(b"t", bytes(9_000)))
    one.settle()
    assert not peer.closed
    peer.send(b"\x30\x91\x4e")
    one.settle()
    assert one.errors == {0x95: 1}
    assert peer.received[:1] == b"\xe0"
    assert peer.closed


def test_a_lost_client_leaves_nothing_behind(shard: Shards) -> None:
    one = shard()
    peer, other = one.connect("p"), one.connect("o")
    other.subscribe(b"#")
    fd = peer.connection.fd
    peer.send(publish(b"t", b"last"))
    peer.socket.close()
    one.settle()
    assert payloads(other) == [b"last"]
    connection = peer.connection
    assert connection.fd == -1
    assert fd not in one.reactor.connections
    assert connection.identity is connection.delivery is connection.handler is None
    assert "p" not in one.sessions


def test_output_goes_before_a_connection_is_closed(shard: Shards) -> None:
    one = shard()
    peer = one.open(send_buffer=4096)
    peer.version = 5
    peer.send(encode(Connect("p", version=5), 5))
    one.settle()
    peer.received.clear()
    peer.subscribe(b"#")
    publisher = one.connect("q")
    publisher.send(publish(b"t", bytes(50_000)))
    one.settle(read=False)
    assert peer.connection.waiting
    client = one.sessions["p"].client
    assert client is not None
    one.handler.disconnect(client, Cause.SHUTDOWN)
    one.settle()
    found = read_all(peer.received, 5)
    assert [type(packet).__name__ for packet in found] == ["Publish", "Disconnect"]
    assert peer.closed
    assert peer.connection.fd == -1


def test_a_closing_connection_is_not_listened_to(shard: Shards) -> None:
    one = shard()
    watcher = one.connect("w")
    watcher.subscribe(b"#")
    peer = one.connect("p", 5)
    peer.send(b"\x36\x00" + publish(b"t", b"x", version=5))  # QoS 3
    one.settle()
    assert peer.closed
    assert payloads(watcher) == []


def test_aliases_are_resolved_per_connection(shard: Shards) -> None:
    one = shard()
    subscriber = one.connect("s", 5)
    subscriber.subscribe(b"#")
    publisher = one.connect("p", 5)
    alias = Properties(topic_alias=1)
    publisher.send(
        publish(b"long/topic", b"1", version=5, properties=alias)
        + publish(b"", b"2", version=5, properties=alias) * 2
        + publish(b"other", b"3", version=5, properties=alias)
        + publish(b"", b"4", version=5, properties=alias)
    )
    one.settle()
    found = [read(packet, 5) for packet in subscriber.packets()]
    assert [(packet.topic, packet.payload) for packet in found if isinstance(packet, Publish)] == [
        (b"long/topic", b"1"),
        (b"long/topic", b"2"),
        (b"long/topic", b"2"),
        (b"other", b"3"),
        (b"other", b"4"),
    ]


def test_a_topic_sent_as_an_alias_counts_in_the_size(shard: Shards) -> None:
    one = shard()
    subscriber = one.connect("s", 5, properties=Properties(maximum_packet_size=100))
    subscriber.subscribe(b"#")
    publisher = one.connect("p", 5)
    alias = Properties(topic_alias=1)
    publisher.send(
        publish(b"x" * 200, b"1", version=5, properties=alias)
        + publish(b"", b"2", version=5, properties=alias) * 2
    )
    one.settle()
    assert payloads(subscriber) == []
    assert one.reactor.tally.dropped_large == 3
