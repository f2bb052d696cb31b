"""QoS 2 as runs of packets: split anywhere, repeated, out of order, refused, with identifiers that begin anew.

A model that handles one packet at a time says what a whole shard must answer, compiled and uncompiled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.protocols.mqtt.packets import Publish
from fluxmq.protocols.mqtt.properties import Properties
from fluxmq.protocols.mqtt.scan import COMPILED
from tests.props.hot_bursts import cuts
from tests.unit.net.shard import Peer, Shard
from tests.unit.protocols.mqtt.wire import numbered, publish, read
from tests.unit.variants import INSTALLED, Hot, uncompiled

PUBREC, PUBREL, PUBCOMP = 0x50, 0x62, 0x70
UNKNOWN = 0x92
NEAR = 40
"""Identifiers that a scenario uses, so that they meet."""


def identifier(base: int, index: int) -> int:
    """An identifier, 1 following 65535."""
    return (base + index) % 65_535 + 1


def reasoned(first: int, packet_id: int, reason: int) -> bytes:
    """An acknowledgement with a reason."""
    return bytes((first, 3)) + packet_id.to_bytes(2, "big") + bytes((reason,))


# A publisher


@dataclass(frozen=True)
class Publishing:
    """What a publisher sends: stretches of identifiers, published or released, in pieces."""

    version: int
    packets: tuple[tuple[str, int], ...]
    pieces: tuple[bytes, ...]


@st.composite
def publishings(draw: st.DrawFn) -> Publishing:
    """Mostly stretches in order, as clients send them."""
    version = draw(st.sampled_from([4, 5]))
    base = draw(st.sampled_from([0, 65_515]))
    packets: list[tuple[str, int]] = []
    data = b""
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["publish", "publish", "release", "release", "reasoned"]))
        first, count = draw(st.integers(0, NEAR - 1)), draw(st.integers(1, 20))
        for index in range(first, first + count):
            packet_id = identifier(base, index % NEAR)
            packets.append((kind, packet_id))
            if kind == "publish":
                payload = len(packets).to_bytes(4, "big")
                data += publish(b"t", payload, 2, packet_id, version)
            elif kind == "release" or version == 4:
                data += numbered(PUBREL, packet_id)
            else:
                data += reasoned(PUBREL, packet_id, draw(st.sampled_from([0, UNKNOWN])))
    return Publishing(version, tuple(packets), tuple(draw(cuts(data))))


def publish_all(scenario: Publishing, hot: Hot) -> tuple[bytes, list[bytes]]:
    """What the publisher got after CONNACK, and the payloads that a subscriber got."""
    shard = Shard(hot, receive_bytes=2048)
    try:
        subscriber = shard.connect("s", 4)
        subscriber.subscribe(b"t")
        publisher = shard.connect("p", scenario.version)
        for piece in scenario.pieces:
            publisher.send(piece)
            shard.settle()
        return bytes(publisher.received), [payload(each, 4) for each in subscriber.packets()]
    finally:
        shard.close_all()


def payload(packet: bytes, version: int) -> bytes:
    """The payload of a PUBLISH."""
    found = read(packet, version)
    assert isinstance(found, Publish)
    return found.payload


@given(publishings())
def test_each_publish_is_routed_once_and_each_packet_answered(scenario: Publishing) -> None:
    answers, routed = publish_all(scenario, INSTALLED)
    received: set[int] = set()
    wanted = b""
    payloads = []
    for number, (kind, packet_id) in enumerate(scenario.packets, 1):
        if kind == "publish":
            if packet_id not in received:
                received.add(packet_id)
                payloads.append(number.to_bytes(4, "big"))
            wanted += numbered(PUBREC, packet_id)
        elif packet_id in received or scenario.version == 4:
            received.discard(packet_id)
            wanted += numbered(PUBCOMP, packet_id)
        else:
            wanted += reasoned(PUBCOMP, packet_id, UNKNOWN)
    assert answers == wanted
    assert routed == payloads


@pytest.mark.skipif(not COMPILED, reason="the hot path runs uncompiled: nothing to compare with")
@given(publishings())
def test_publishers_get_the_same_bytes_compiled_and_uncompiled(scenario: Publishing) -> None:
    assert publish_all(scenario, INSTALLED) == publish_all(scenario, uncompiled())


# A subscriber


@dataclass(frozen=True)
class Subscribing:
    """Messages for a subscriber, and how it answers: for each step, which of the packets that it may answer, and
    whether it repeats itself."""

    version: int
    base: int
    window: int
    bursts: tuple[int, ...]
    steps: tuple[tuple[str, int, int], ...]
    cut: int


@st.composite
def subscribings(draw: st.DrawFn) -> Subscribing:
    """A few dozen messages."""
    kinds = ["receive", "receive", "complete", "complete", "repeat", "unknown", "refuse"]
    step = st.tuples(st.sampled_from(kinds), st.integers(0, 12), st.integers(1, 20))
    return Subscribing(
        draw(st.sampled_from([4, 5])),
        draw(st.sampled_from([1, 65_520, 65_535])),
        draw(st.sampled_from([3, 10, 100])),
        tuple(draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))),
        tuple(draw(st.lists(step, max_size=12))),
        draw(st.integers(1, 50)),
    )


@dataclass
class Client:
    """The subscriber at work. `sent`: identifiers without PUBREC; `released`: those without PUBCOMP, in order."""

    shard: Shard
    peer: Peer
    version: int
    cut: int
    sent: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    got: list[bytes] = field(default_factory=list)
    refused: int = 0

    def exchange(self, data: bytes, wanted: list[bytes]) -> None:
        """Send answers in two pieces; the broker must release `wanted`, in order."""
        for piece in (data[: self.cut], data[self.cut :]):
            if piece:
                self.peer.send(piece)
                self.shard.settle()
        releases = []
        for packet in self.peer.packets():
            if packet[0] >> 4 == 3:
                found = read(packet, self.version)
                assert isinstance(found, Publish)
                assert not found.dup
                assert found.packet_id not in self.sent + self.released
                self.sent.append(found.packet_id)
                self.got.append(found.payload)
            else:
                releases.append(packet)
        assert releases == wanted

    def step(self, kind: str, first: int, count: int) -> None:
        """Answer in one way."""
        if kind == "receive":
            some = self.sent[first : first + count]
            self.released += some
            self.sent = [each for each in self.sent if each not in some]
            self.exchange(written(PUBREC, some), releases(some))
        elif kind == "repeat":
            some = self.released[first : first + count]
            self.exchange(written(PUBREC, some), releases(some))
        elif kind == "complete":
            some = self.released[first : first + count]
            self.released = [each for each in self.released if each not in some]
            self.exchange(written(PUBCOMP, some + some[:1]), [])
        elif kind == "unknown":
            some = [30_000 + each for each in range(count)]
            plain = self.version == 4
            answers = releases(some) if plain else [reasoned(PUBREL, e, UNKNOWN) for e in some]
            self.exchange(written(PUBREC, some) + written(PUBCOMP, some), answers)
        elif self.version == 5:
            some = self.sent[first : first + count]
            self.refused += len(some)
            self.sent = [each for each in self.sent if each not in some]
            self.exchange(b"".join(reasoned(PUBREC, each, 0x80) for each in some), [])


def written(first: int, packet_ids: list[int]) -> bytes:
    """Plain acknowledgements."""
    return b"".join(numbered(first, each) for each in packet_ids)


def releases(packet_ids: list[int]) -> list[bytes]:
    """PUBREL for each."""
    return [numbered(PUBREL, each) for each in packet_ids]


def subscribe_all(scenario: Subscribing, hot: Hot) -> tuple[bytes, list[bytes], Any]:
    """What the subscriber was sent, the payloads in it, and its delivery at the end."""
    shard = Shard(hot)
    try:
        properties = Properties()
        if scenario.version == 5:
            properties = Properties(receive_maximum=scenario.window)
        peer = shard.connect("s", scenario.version, properties=properties)
        delivery = shard.sessions["s"].delivery
        delivery.next_pid = scenario.base
        peer.subscribe(b"#", 2)
        publisher = shard.connect("p", 4)
        client = Client(shard, peer, scenario.version, 4 * scenario.cut - scenario.cut % 3)
        number = 0
        for burst in scenario.bursts:
            for _ in range(burst):
                number += 1
                publisher.send(publish(b"t/%d" % burst, number.to_bytes(4, "big"), 2, number))
            shard.settle()
        client.exchange(b"", [])
        for step in scenario.steps:
            client.step(*step)
        while client.sent or client.released:
            client.step("receive", 0, 1000)
            client.step("complete", 0, 1000)
        released = delivery.released
        left = delivery.inflight, 0 if released is None else released.count
        return bytes(peer.all), client.got, left
    finally:
        shard.close_all()


@given(subscribings())
def test_each_message_is_sent_once_and_each_receipt_released(scenario: Subscribing) -> None:
    _, got, left = subscribe_all(scenario, INSTALLED)
    assert got == [number.to_bytes(4, "big") for number in range(1, sum(scenario.bursts) + 1)]
    assert left == (0, 0)


@pytest.mark.skipif(not COMPILED, reason="the hot path runs uncompiled: nothing to compare with")
@given(subscribings())
def test_subscribers_get_the_same_bytes_compiled_and_uncompiled(scenario: Subscribing) -> None:
    assert subscribe_all(scenario, INSTALLED) == subscribe_all(scenario, uncompiled())
