"""Accepting in the compiled core: the same decisions and bytes as installed and uncompiled, and as ``sniff`` decides."""

import os
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxmq.ipc import handoff
from fluxmq.net import accept
from fluxmq.net import accept_batch as batch
from fluxmq.protocols.sniff import Sniffed, WireProtocol, shard_of, sniff
from tests.unit.variants import from_source

DEADLINE = 10.0
LIMIT = 300
WORKERS = 3


@dataclass(frozen=True)
class Variant:
    """One set of the modules."""

    name: str
    batch: Any
    accept: Any


VARIANTS = (
    Variant("installed", batch, accept),
    Variant("uncompiled", from_source("net.accept_batch"), from_source("net.accept")),
)


def connect_packet(
    client_id: bytes, level: int = 4, name: bytes = b"\x00\x04MQTT", properties: bytes = b""
) -> bytes:
    body = name + bytes([level]) + b"\x02\x00\x3c"
    if level == 5:
        body += encode_length(len(properties)) + properties
    body += struct.pack(">H", len(client_id)) + client_id
    return b"\x10" + encode_length(len(body)) + body


def encode_length(length: int) -> bytes:
    encoded = b""
    while length > 127:
        encoded += bytes([length & 127 | 128])
        length >>= 7
    return encoded + bytes([length])


packets = st.builds(
    connect_packet,
    st.one_of(st.binary(max_size=40), st.binary(min_size=100, max_size=250)),
    st.sampled_from([3, 4, 5, 6]),
    st.sampled_from([b"\x00\x04MQTT", b"\x00\x04MQTX", b"\x00\x06MQIsdp", b"\x00\x05MQTT"]),
    st.one_of(st.just(b""), st.binary(max_size=20), st.binary(min_size=120, max_size=140)),
)


@st.composite
def beginnings(draw: st.DrawFn) -> bytes:
    """First bytes: a CONNECT, perhaps cut, changed or followed by more; or anything."""
    data = bytearray(draw(st.one_of(packets, packets, packets, st.binary(max_size=40))))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    end = draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))
    return bytes(data[:end]) + draw(st.sampled_from([b"", b"\xc0\x00"]))


@settings(max_examples=700, deadline=None)
@given(beginnings(), st.sampled_from([20, 64, LIMIT]), st.integers(1, 9))
def test_the_shard_is_the_one_that_sniff_finds(data: bytes, limit: int, workers: int) -> None:
    data = data[:limit]
    verdict = sniff(data, limit)
    easy = (
        isinstance(verdict, Sniffed)
        and verdict.wire is WireProtocol.MQTT
        and verdict.client_id
        and not verdict.oversized
        and verdict.level in (4, 5)
        and b"\x00\x04MQTT" in data[:12]
    )
    expected = accept.NO_SHARD
    if easy:
        assert isinstance(verdict, Sniffed)
        assert verdict.client_id is not None
        shard = shard_of(verdict.client_id, workers)
        assert shard is not None
        expected = shard
    for variant in VARIANTS:
        # What lies behind the bytes in the buffer must not matter.
        buffer = bytearray(data) + connect_packet(b"of another connection")
        found = variant.accept.shard_of_connect(buffer, len(data), limit, workers)
        assert found == expected, variant.name


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(100, 2000),
    st.lists(
        st.tuples(
            st.integers(0, 2), st.binary(max_size=255), st.binary(max_size=900), st.booleans()
        ),
        max_size=12,
    ),
)
def test_the_message_is_the_same_and_bounded(
    connections: int, size: int, added: list[tuple[int, bytes, bytes, bool]]
) -> None:
    made = [variant.batch.ConnectionBatch(connections, size) for variant in VARIANTS]
    for number, (listener, peer, data, shared) in enumerate(added):
        given_data: bytes | bytearray = bytearray(data + b"rest") if shared else data
        results = {each.add(number, listener, peer, given_data, len(data)) for each in made}
        assert len(results) == 1
    first, second = made
    assert first.message() == second.message()
    assert len(first.message()) <= size
    assert first.fds == second.fds
    assert len(first.fds) <= connections
    assert first.counts == second.counts
    expected = [added[number] for number in first.fds]
    found = [(each.listener, each.peer, each.data) for each in handoff.taken_back(first)]
    assert found == [(at, peer.decode("utf-8", "replace"), data) for at, peer, data, _ in expected]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: each.name)
def test_what_the_layout_cannot_express_is_refused(variant: Variant) -> None:
    made = variant.batch.ConnectionBatch(10, 100_000)
    for listener, peer, data in ((8, b"", b""), (-1, b"", b""), (0, bytes(256), b"")):
        with pytest.raises(ValueError, match="layout"):
            made.add(0, listener, peer, data, len(data))
    with pytest.raises(ValueError, match="layout"):
        made.add(0, 0, b"", bytes(65536), 65536)
    assert made.fds == []


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: each.name)
def test_a_message_is_sent_or_not(variant: Variant) -> None:
    sender, receiver = handoff.pair()
    made = variant.batch.ConnectionBatch(60, 4096)
    for number in range(3):
        made.add(os.open("/dev/null", os.O_RDONLY), 1, b"peer-%d" % number, b"data", 4)
    before = len(os.listdir("/proc/self/fd"))
    assert made.send(sender)
    assert len(os.listdir("/proc/self/fd")) == before  # still ours
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before - 3
    assert (made.fds, made.message()) == ([], b"\x00\x00")
    received = handoff.receive(receiver)
    assert [each.peer for each in received] == ["peer-0", "peer-1", "peer-2"]
    for each in received:
        os.close(each.fd)
    made.add(0, 1, b"peer", b"", 0)
    while made.send(sender):
        pass
    assert made.fds == [0]  # a full socket leaves it as it is
    receiver.close()
    with pytest.raises(OSError, match=r"Broken pipe|Connection reset"):
        made.send(sender)
    sender.close()


@dataclass
class Script:
    """What one client does: the pieces it sends, then perhaps the end."""

    pieces: list[bytes]
    ends: bool


scripts = st.lists(
    st.builds(
        lambda data, cuts, ends: Script(
            [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if data[a:b]],
            ends,
        ),
        beginnings(),
        st.lists(st.integers(0, 60), max_size=2).map(sorted),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@dataclass
class Door:
    """A listening socket with an entrance behind it."""

    variant: Variant
    family: int = socket.AF_INET
    host: str = "127.0.0.1"
    sock: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self.sock = socket.create_server((self.host, 0), family=self.family)
        self.sock.setblocking(False)
        self.batches = [self.variant.batch.ConnectionBatch(60, 10_000) for _ in range(WORKERS)]
        self.entrance = self.variant.accept.Entrance(LIMIT, self.batches, 0)

    def dial(self) -> socket.socket:
        client = socket.create_connection(self.sock.getsockname()[:2], DEADLINE)
        assert select.select([self.sock], [], [], DEADLINE)[0]
        return client

    def close(self) -> None:
        for each in self.batches:
            each.close()
        self.sock.close()

    def follow(self, script: Script, listener: int) -> list[object]:
        """Let one client in: the outcomes that do not depend on time, and what was read."""
        entrance = self.entrance
        pieces = list(script.pieces)
        seen: list[object] = []
        with self.dial() as client:
            if pieces:
                client.sendall(pieces.pop(0))
            elif script.ends:
                client.shutdown(socket.SHUT_WR)
            sent = bool(script.pieces or script.ends)
            entrance.left = 1
            outcome = entrance.take(self.sock, listener)
            if outcome == accept.ASK:
                seen.append("asked")
                outcome = entrance.enter()
            fd = entrance.fd
            host, port = client.getsockname()[:2]
            assert entrance.peer.decode() in (f"{host}:{port}", f"[{host}]:{port}")
            assert entrance.loopback
            if outcome == accept.NONE:
                outcome = accept.AWAIT if entrance.early else accept.HANDED
            while outcome == accept.AWAIT and sent:
                assert select.select([fd], [], [], DEADLINE)[0]
                entrance.begin()
                outcome = entrance.hear(fd, listener, entrance.peer.decode())
            entrance.begin()
            handed = any(fd in each.fds for each in self.batches)
            seen.append(("handed", handed))
            if not handed:
                seen += self.rest(fd, outcome, client, pieces, script.ends)
                os.close(fd)
        return seen

    def rest(
        self, fd: int, outcome: int, client: socket.socket, pieces: list[bytes], ends: bool
    ) -> Iterator[object]:
        """What the caller does with a connection that it was given."""
        yield outcome == accept.READ
        if outcome == accept.READ:
            yield self.entrance.data()
        for piece in pieces:
            client.sendall(piece)
            assert select.select([fd], [], [], DEADLINE)[0]
            yield self.entrance.read(fd, 7)
            yield self.entrance.data()
        if ends:
            client.close()
            outcome = accept.READ
            while outcome == accept.READ:
                assert select.select([fd], [], [], DEADLINE)[0]
                outcome = self.entrance.read(fd, LIMIT)
            yield outcome


@settings(max_examples=60, deadline=None)
@given(scripts, st.sampled_from([0, 0, 1]), st.booleans(), st.integers(0, 4), st.booleans())
def test_the_same_decisions(
    clients: list[Script], listener: int, ask: bool, room: int, paused: bool
) -> None:
    results = []
    for variant in VARIANTS:
        door = Door(variant)
        door.entrance.ask_loopback = ask
        door.entrance.room = room
        door.batches[1].paused = paused
        seen = [door.follow(script, listener) for script in clients]
        carried = [
            [(each.listener, each.data) for each in handoff.taken_back(batched)]
            for batched in door.batches
        ]
        results.append((seen, carried, door.entrance.accepted, door.entrance.room))
        assert not (paused and carried[1])
        assert sum(map(len, carried)) <= room
        assert listener == 0 or not any(carried)
        door.close()
    assert results[0] == results[1]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: each.name)
def test_silent_ones_are_looked_at_again(variant: Variant) -> None:
    door = Door(variant)
    entrance = door.entrance
    entrance.ask_loopback = False
    entrance.room = 10
    clients = [door.dial() for _ in range(3)]
    entrance.left = 10
    assert entrance.take(door.sock, 0) == accept.NONE
    assert (entrance.accepted, len(entrance.early)) == (3, 3)
    clients[1].sendall(connect_packet(b"second"))
    fds = [each[0] for each in entrance.early]
    assert select.select([fds[1]], [], [], DEADLINE)[0]
    for turns in range(accept.EARLY_TURNS - 1, 0, -1):
        entrance.begin()
        assert entrance.again() == accept.NONE
        assert [(each[0], each[4]) for each in entrance.early] == [(fds[0], turns), (fds[2], turns)]
    entrance.begin()
    for fd in (fds[0], fds[2]):  # now they are to be awaited
        assert entrance.again() == accept.AWAIT
        assert entrance.fd == fd
        os.close(fd)
    assert entrance.again() == accept.NONE
    assert [each.fds for each in door.batches if each.fds] == [[fds[1]]]
    for client in clients:
        client.close()
    door.close()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: each.name)
def test_accepted_sockets_do_not_block_and_are_not_inherited(variant: Variant) -> None:
    door = Door(variant)
    with door.dial():
        door.entrance.left = 1
        assert door.entrance.take(door.sock, 0) == accept.ASK
        fd = door.entrance.fd
        assert not os.get_blocking(fd)
        assert not os.get_inheritable(fd)
        assert door.entrance.take(door.sock, 0) == accept.NONE  # none is left
        os.close(fd)
    door.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 in this interpreter")
def test_ipv6() -> None:
    for variant in VARIANTS:
        try:
            door = Door(variant, socket.AF_INET6, "::1")
        except OSError:
            pytest.skip("no IPv6 on this machine")
        door.entrance.ask_loopback = False
        door.entrance.room = 1
        assert door.follow(Script([connect_packet(b"six")], False), 0) == [("handed", True)]
        door.close()


def test_a_refused_accept_is_told_by_its_number() -> None:
    for variant in VARIANTS:
        door = Door(variant)
        with socket.socket() as silent:  # does not listen
            door.entrance.left = 1
            assert door.entrance.take(silent, 0) == accept.FAILED
        assert os.strerror(door.entrance.error) == "Invalid argument"
        assert door.entrance.accepted == 0
        door.close()
