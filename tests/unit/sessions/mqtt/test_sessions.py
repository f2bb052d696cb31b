"""Sessions on the hot path, by what goes over the wire: what one packet allows the next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.auth.policy import TopicPolicy
from fluxmq.protocols.mqtt.codec import encode
from fluxmq.protocols.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
    WillPacket,
)
from fluxmq.protocols.mqtt.properties import Properties
from tests.unit.net.shard import Peer, Shard
from tests.unit.protocols.mqtt.wire import numbered, publish, read_all

Shards = Callable[..., Shard]


def got(peer: Peer) -> list[Packet]:
    """What the peer has got since the last look."""
    peer.shard.settle()
    found = read_all(peer.received, peer.version)
    peer.received.clear()
    return found


def said(peer: Peer, *packets: Packet | bytes) -> list[Packet]:
    """Send packets; what comes back."""
    for packet in packets:
        peer.send(packet if isinstance(packet, bytes) else encode(packet, peer.version))
    return got(peer)


def payloads(peer: Peer) -> list[bytes]:
    return [packet.payload for packet in got(peer) if isinstance(packet, Publish)]


def reason_of(found: list[Packet]) -> int:
    """The reason of the one DISCONNECT."""
    (packet,) = found
    assert isinstance(packet, Disconnect)
    return packet.reason


def answers(found: list[Packet]) -> list[tuple[int, int]]:
    """Identifiers and reasons of PUBACKs."""
    return [(packet.packet_id, packet.reason) for packet in found if isinstance(packet, Puback)]


# QoS 2 from a publisher


def test_a_repeated_qos_2_publish_is_answered_and_not_routed_again(shard: Shards) -> None:
    one = shard()
    watcher, publisher = one.connect("w"), one.connect("p")
    watcher.subscribe(b"#")
    first = publish(b"t", b"1", 2, 7)
    assert said(publisher, first) == [Pubrec(7)]
    again = publish(b"t", b"1", 2, 7, dup=True)
    assert said(publisher, again, again + publish(b"t", b"2", 2, 8)) == [Pubrec(7)] * 2 + [
        Pubrec(8)
    ]
    assert payloads(watcher) == [b"1", b"2"]
    assert said(publisher, numbered(0x62, 7)) == [Pubcomp(7)]
    assert said(publisher, publish(b"t", b"3", 2, 7)) == [Pubrec(7)]
    assert payloads(watcher) == [b"3"]


def test_qos_2_identifiers_survive_the_connection(shard: Shards) -> None:
    one = shard()
    watcher = one.connect("w")
    watcher.subscribe(b"#")
    publisher = one.connect("p", clean=False)
    said(publisher, publish(b"t", b"1", 2, 7))
    publisher.socket.close()
    one.settle()
    publisher = one.connect("p", clean=False)
    assert said(publisher, publish(b"t", b"1", 2, 7, dup=True)) == [Pubrec(7)]
    assert payloads(watcher) == [b"1"]


@pytest.mark.parametrize("together", [True, False])
def test_unreleased_qos_2_messages_are_bounded(shard: Shards, together: bool) -> None:
    one = shard(max_inflight=3)
    publisher = one.connect("p", 5)
    packets = [publish(b"t", b"x", 2, number, 5) for number in range(1, 5)]
    if together:
        packets = [b"".join(packets)]
    found = [answer for packet in packets for answer in said(publisher, packet)]
    assert reason_of(found[-1:]) == 0x93
    assert len(found) == (1 if together else 4)
    assert publisher.closed


# What the server allows


def test_an_alias_above_the_maximum_or_unknown_is_an_error(shard: Shards) -> None:
    one = shard(topic_alias_maximum=2)
    for alias, topic, reason in ((3, b"t", 0x94), (2, b"", 0x82)):
        peer = one.connect("p", 5)
        properties = Properties(topic_alias=alias)
        assert (
            reason_of(said(peer, publish(topic, b"x", version=5, properties=properties))) == reason
        )


def test_only_the_broker_speaks_on_system_topics(shard: Shards) -> None:
    one = shard()
    watcher, peer = one.connect("w", 5), one.connect("p", 5)
    watcher.subscribe(b"$SYS/#")
    assert answers(said(peer, publish(b"$SYS/broker/x", b"x", 1, 1, 5))) == [(1, 0x87)]
    assert payloads(watcher) == []
    assert one.drops == {"no_permission": 1}


def test_permissions_hold_for_every_topic_of_a_connection(shard: Shards) -> None:
    one = shard(policy=TopicPolicy(["mine/#"], ["#"]))
    watcher, peer = one.connect("w", 5), one.connect("p", 5)
    watcher.subscribe(b"#")
    found = said(
        peer,
        publish(b"mine/a", b"1", 1, 1, 5) * 2
        + publish(b"yours", b"2", 1, 2, 5)
        + publish(b"mine/a", b"3", 1, 3, 5),
    )
    assert answers(found) == [(1, 0), (1, 0), (2, 0x87), (3, 0)]
    assert payloads(watcher) == [b"1", b"1", b"3"]


def test_subscriptions_per_session_are_bounded(shard: Shards) -> None:
    one = shard(max_subscriptions=2)
    peer = one.connect("p", 5)
    filters = [Subscription(topic_filter, 1) for topic_filter in (b"a", b"b", b"a", b"c")]
    assert said(peer, Subscribe(1, filters)) == [Suback(1, [1, 1, 1, 0x97])]


def test_a_filter_must_be_covered(shard: Shards) -> None:
    one = shard(policy=TopicPolicy(["#"], ["a/+"]))
    peer = one.connect("p", 5)
    filters = [Subscription(topic_filter, 0) for topic_filter in (b"a/b", b"a/#", b"#", b"a/+")]
    assert said(peer, Subscribe(1, filters)) == [Suback(1, [0, 0x87, 0x87, 0])]


def test_sessions_are_bounded(shard: Shards) -> None:
    one = shard(max_sessions=2)
    one.connect("1")
    one.connect("2")
    peer = one.open()
    peer.version = 5
    (answer,) = said(peer, Connect("3"))
    assert isinstance(answer, Connack)
    assert answer.reason == 0x97
    assert peer.closed


@pytest.mark.parametrize("name", ["amqp:x", "amqp091-x"])
def test_the_names_of_other_protocols_are_refused(shard: Shards, name: str) -> None:
    one = shard()
    peer = one.open()
    peer.version = 5
    (answer,) = said(peer, Connect(name))
    assert isinstance(answer, Connack)
    assert answer.reason == 0x85


# Order of packets and ends of connections


def test_a_second_connect_is_an_error(shard: Shards) -> None:
    one = shard()
    peer = one.connect("p", 5)
    assert reason_of(said(peer, Connect("p"))) == 0x82
    assert peer.closed


def test_a_will_is_published_unless_the_client_says_goodbye(shard: Shards) -> None:
    one = shard()
    watcher = one.connect("w")
    watcher.subscribe(b"#")
    for goodbye, expected in ((b"", [b"gone"]), (b"\xe0\x00", [])):
        peer = one.open()
        peer.version = 4
        said(peer, Connect("p", version=4, will=WillPacket(b"w", b"gone", 1)))
        peer.send(goodbye)
        peer.socket.close()
        assert payloads(watcher) == expected


def test_a_client_id_has_one_connection(shard: Shards) -> None:
    one = shard()
    first = one.connect("p", 5)
    second = one.connect("p", 5)
    assert reason_of(got(first)) == 0x8E
    assert first.closed
    assert said(second, b"\xc0\x00")
    assert len(one.sessions) == 1
