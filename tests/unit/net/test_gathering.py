"""Packets that do not arrive in one piece: larger than the receive buffer, trickling, through a filter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.protocols.connection import CHUNK_MIN
from fluxmq.protocols.mqtt.codec import encode
from fluxmq.protocols.mqtt.packets import Connect, Publish
from tests.unit.net.shard import Peer, Shard
from tests.unit.protocols.mqtt.wire import puback, publish, read

Shards = Callable[..., Shard]

PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


def payloads(peer: Peer) -> list[bytes]:
    """Payloads of the publishes received since the last look."""
    found = [read(packet, peer.version) for packet in peer.packets()]
    return [packet.payload for packet in found if isinstance(packet, Publish)]


@pytest.mark.parametrize("size", [10, 1000, CHUNK_MIN, 20_000, 300_000])
@pytest.mark.parametrize("step", [997, 65_536])
def test_packets_larger_than_the_receive_buffer(shard: Shards, size: int, step: int) -> None:
    one = shard(receive_bytes=1024)
    subscriber, publisher = one.connect("s"), one.connect("p")
    subscriber.subscribe(b"#")
    bodies = [bytes((number,)) * size for number in range(5)]
    data = b"".join(publish(b"t", body) for body in bodies)
    for at in range(0, len(data), step):
        publisher.send(data[at : at + step])
        one.settle()
    assert payloads(subscriber) == bodies
    assert publisher.connection.tail is None
    assert publisher.connection.gathering is None


def test_a_packet_that_trickles_in(shard: Shards) -> None:
    one = shard()
    subscriber, publisher = one.connect("s"), one.connect("p")
    subscriber.subscribe(b"#")
    data = publish(b"t", bytes(range(256)) * 20)
    for at in range(len(data) - 1):
        publisher.send(data[at : at + 1])
        one.reactor.tick()
    assert publisher.connection.gathered == len(data) - 1
    publisher.send(data[-1:] + PINGREQ)
    one.settle()
    assert payloads(subscriber) == [bytes(range(256)) * 20]
    assert publisher.received == PINGRESP


def test_announcing_a_large_packet_takes_no_memory(shard: Shards) -> None:
    one = shard()
    publisher = one.connect("p")
    data = publish(b"t", bytes(1_000_000))
    sent = 0
    while sent < len(data) - 1:
        step = min(30_000, len(data) - 1 - sent)
        publisher.send(data[sent : sent + step])
        one.settle()
        sent += step
        gathering = publisher.connection.gathering
        assert gathering is not None
        assert len(gathering) <= max(CHUNK_MIN, 2 * sent)


class Plain:
    """A stream filter that changes nothing."""

    closed = False

    def feed(self, data: bytes) -> bytes:
        return data

    def encode(self, chunks: list[bytes]) -> bytes:
        return b"".join(chunks)

    def pending(self) -> bytes:
        return b""

    def shutdown(self) -> bytes:
        return b""


@pytest.mark.parametrize("size", [10, 5000, 300_000])
@pytest.mark.parametrize("step", [9973, 65_536])
def test_packets_through_a_stream_filter(shard: Shards, size: int, step: int) -> None:
    one = shard(receive_bytes=2048)
    publisher = one.open(stream=Plain())
    publisher.send(encode(Connect("p", version=4), 4))
    subscriber = one.connect("s")
    subscriber.subscribe(b"#")
    bodies = [bytes((number,)) * size for number in range(5)]
    data = b"".join(publish(b"t", body, 1, 7) + PINGREQ for body in bodies)
    for at in range(0, len(data), step):
        publisher.send(data[at : at + step])
        one.settle()
    assert payloads(subscriber) == bodies
    assert publisher.received == b"\x20\x02\x00\x00" + (puback(7) + PINGRESP) * 5


def test_a_filter_that_ends_ends_the_connection(shard: Shards) -> None:
    one = shard()
    stream = Plain()
    peer = one.open(stream=stream)
    peer.send(encode(Connect("p", version=4), 4))
    one.settle()
    stream.closed = True
    peer.send(PINGREQ)
    one.settle()
    assert peer.closed
    assert peer.received == b"\x20\x02\x00\x00" + PINGRESP
