"""MQTT on a broker of two shards, from outside: what must not depend on where a client happens to be."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from tests.conformance import wire
from tests.conformance.client import Client, eventually, payloads
from tests.conformance.wire import V4, V5, Filter, Will
from tests.integration.two_shards import (
    BOTH_WAYS,
    KEEP,
    Shards,
    browser,
    found_ids,
    node,
    plain,
    secure,
    shards,
)

__all__ = ["found_ids", "node", "shards"]


@BOTH_WAYS
@pytest.mark.parametrize("version", [V4, V5], ids=["3.1.1", "5.0"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_cross(shards: Shards, here: int, there: int, version: int, qos: int) -> None:
    """Publisher on one shard, subscriber on the other: all arrive, in order, once."""
    topic = shards.topic()
    subscriber = shards.on(there, version)
    subscriber.subscribe(topic, qos=qos)
    publisher = shards.on(here, version)
    sent = [b"%d" % number for number in range(300)]
    for each in sent:
        publisher.publish(topic, each, qos=qos)
    assert payloads(subscriber.receive() for _ in sent) == sent
    assert subscriber.ping() == []


@BOTH_WAYS
def test_suback_means_everywhere(shards: Shards, here: int, there: int) -> None:
    """A message published after SUBACK is delivered, on whatever shard it is published."""
    publisher, subscriber = shards.on(here), shards.on(there)
    for number in range(50):
        topic = shards.topic()
        subscriber.subscribe(topic, qos=1)
        publisher.publish(topic, b"%d" % number, qos=1)
        assert subscriber.receive().payload == b"%d" % number
        subscriber.unsubscribe(topic)
        publisher.publish(topic, b"after", qos=1)
    assert subscriber.ping() == []


@pytest.mark.statement("v5:4.6.0-5", "v4:4.6.0-6")
def test_order_of_each_publisher(shards: Shards) -> None:
    """Publishers on both shards, subscribers on both: each stream stays in order everywhere."""
    topic = shards.topic()
    subscribers = [shards.on(shard) for shard in (0, 1)]
    for subscriber in subscribers:
        subscriber.subscribe(topic, qos=1)
    publishers = [shards.on(shard) for shard in (0, 1, 0, 1)]
    for start in range(0, 200, 20):
        for name, publisher in enumerate(publishers):
            publisher.send(
                *(
                    wire.publish(V5, topic, b"%d:%d" % (name, n), qos=1, packet_id=n + 1)
                    for n in range(start, start + 20)
                )
            )
    for subscriber in subscribers:
        got = [subscriber.receive().payload for _ in range(800)]
        for name in range(4):
            mine = [each for each in got if each.startswith(b"%d:" % name)]
            assert mine == [b"%d:%d" % (name, n) for n in range(200)]


@BOTH_WAYS
def test_large_messages_cross(shards: Shards, here: int, there: int) -> None:
    """Messages of up to a packet's maximum, together more than the link between shards holds."""
    topic = shards.topic()
    subscriber, publisher = shards.on(there), shards.on(here)
    subscriber.subscribe(topic, qos=1)
    sizes = [1, 1000, 65_536, 1_000_000] * 5
    for number, size in enumerate(sizes):
        publisher.publish(topic, bytes([number]) * size, qos=1)
    for number, size in enumerate(sizes):
        assert subscriber.receive().payload == bytes([number]) * size


@pytest.mark.statement("v5:4.8.2-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_shared_subscription_across_shards(shards: Shards, qos: int) -> None:
    """Members on both shards, publishers on both: each message to one member, all members used."""
    topic = shards.topic()
    members = [shards.on(shard) for shard in (0, 1, 0, 1)]
    for member in members:
        member.subscribe(f"$share/g/{topic}", qos=qos)
    publishers = [shards.on(shard) for shard in (0, 1)]
    for number in range(100):
        publishers[number % 2].publish(topic, b"%d" % number, qos=qos)
    got: list[list[bytes]] = [[] for _ in members]
    end = time.monotonic() + 15
    while sum(len(part) for part in got) < 100 and time.monotonic() < end:
        for part, member in zip(got, members, strict=True):
            for packet in member.ping():
                if packet.kind == wire.PUBLISH:
                    member.acknowledge(packet)
                    part.append(packet.payload)
    assert sorted(itertools.chain(*got)) == sorted(b"%d" % number for number in range(100))
    assert all(got), [len(part) for part in got]


@BOTH_WAYS
@pytest.mark.parametrize("how", ["disconnect", "drop", "unsubscribe"])
def test_unacknowledged_messages_are_handed_over(
    shards: Shards, here: int, there: int, how: str
) -> None:
    """QoS 1 messages of a member that leaves go to the member on the other shard."""
    topic = shards.topic()
    leaving, staying = shards.on(here), shards.on(there)
    for member in (leaving, staying):
        member.subscribe(f"$share/g/{topic}", qos=1)
    publisher = shards.on(there)
    sent = [b"%d" % number for number in range(40)]
    for each in sent:
        publisher.publish(topic, each, qos=1)
    held = [packet for packet in leaving.ping() if packet.kind == wire.PUBLISH]
    assert held
    if how == "unsubscribe":
        leaving.unsubscribe(f"$share/g/{topic}")
        # What is under way to a client that stays connected is completed with it (MQTT-3.10.4-3).
        for message in held:
            leaving.acknowledge(message)
        expected = sorted(set(sent) - set(payloads(held)))
    else:
        leaving.disconnect() if how == "disconnect" else leaving.drop()
        expected = sorted(sent)
    assert sorted(staying.receive().payload for _ in expected) == expected
    assert staying.ping() == []


@BOTH_WAYS
@pytest.mark.statement("v5:3.3.1-5", "v4:3.3.1-5", "v5:3.3.1-6", "v4:3.3.1-10")
def test_retained_messages_cross(shards: Shards, here: int, there: int) -> None:
    """Stored, replaced and cleared from either shard, found from either."""
    topic = shards.topic()
    one, other = shards.on(here), shards.on(there)
    for writer, payload in ((one, b"first"), (other, b"second"), (one, b"third"), (other, b"")):
        writer.publish(topic, payload, qos=1, retain=True)
        for reader in (one, other):

            def found(reader: Client = reader, payload: bytes = payload) -> bool:
                messages = shards.retained(V5, topic, client=reader)
                reader.unsubscribe(topic)
                return payloads(messages) == ([payload] if payload else [])

            # The publisher's acknowledgement does not wait for the other shard's copy.
            eventually(found, f"{payload!r} from either shard")


def test_many_retained_messages_cross(shards: Shards) -> None:
    """A wildcard finds the retained messages of both shards, each once."""
    root = shards.topic()
    writers = [shards.on(0), shards.on(1)]
    for number in range(400):
        writers[number % 2].publish(f"{root}/{number}", b"x", qos=1, retain=True)
    for shard in (0, 1):

        def complete(shard: int = shard) -> bool:
            reader = shards.on(shard)
            found = shards.retained(V5, f"{root}/#", client=reader)
            reader.disconnect()
            topics = [message.topic for message in found]
            assert len(set(topics)) == len(topics), "a retained message twice"
            return len(topics) == 400

        eventually(complete, "400 retained messages")


@BOTH_WAYS
@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.statement("v5:3.1.2-8", "v4:3.1.2-8")
def test_wills_cross(shards: Shards, here: int, there: int, delay: int) -> None:
    """A client of one shard breaks off, a client of the other is told."""
    topic = shards.topic()
    watcher = shards.on(there)
    watcher.subscribe(topic, qos=1)
    will = Will(topic, b"gone", 1, True, [(wire.WILL_DELAY_INTERVAL, delay)])
    shards.on(here, will=will, props=KEEP).drop()
    message = watcher.receive()
    assert (message.payload, message.qos) == (b"gone", 1)


@BOTH_WAYS
def test_slow_subscriber_elsewhere_holds_up_nobody(shards: Shards, here: int, there: int) -> None:
    """A client that does not read, on the other shard, costs the publisher's other readers nothing."""
    topic = shards.topic()
    stuck, reader = shards.on(there), shards.on(there)
    for client in (stuck, reader):
        client.subscribe(Filter(topic, 0))
    publisher = shards.on(here)
    body = bytes(50_000)
    for number in range(0, 2000, 20):
        publisher.send(
            *(wire.publish(V5, topic, b"%d " % n + body) for n in range(number, number + 20))
        )
        for _ in range(20):
            reader.receive()
    assert publisher.ping() == []


@pytest.mark.parametrize("seed", range(3))
def test_shared_members_come_and_go(shards: Shards, seed: int) -> None:
    """Members leave in every way, with messages unacknowledged, while both shards publish: as long
    as one member is there every QoS 1 message reaches somebody."""
    chance = random.Random(seed)
    topic = shards.topic()

    def join() -> Client:
        opened = chance.choice([plain, secure, browser])
        client = opened(shards)
        props = [(wire.RECEIVE_MAXIMUM, chance.choice([1, 5, 1000]))]
        assert client.connect(shards.client_id(), props=props).reason == 0
        client.subscribe(f"$share/g/{topic}", qos=1)
        return client

    members = [join() for _ in range(4)]
    publishers = [shards.on(0), shards.on(1)]
    seen: set[bytes] = set()
    number = 0

    def drain(member: Client) -> int:
        messages = [packet for packet in member.ping() if packet.kind == wire.PUBLISH]
        for message in messages:
            seen.add(message.payload)
            member.acknowledge(message)
        return len(messages)

    for _ in range(40):
        for name, publisher in enumerate(publishers):
            publisher.send(
                *(
                    wire.publish(V5, topic, b"%d:%d" % (name, n), qos=1, packet_id=n + 1)
                    for n in range(number, number + 10)
                )
            )
        number += 10
        for member in chance.sample(members, 2):
            drain(member)
        leaving = members.pop(chance.randrange(len(members)))
        members.append(join())
        if chance.random() < 0.5:
            leaving.drop()
        else:
            leaving.disconnect()
    for publisher in publishers:
        for _ in range(number):
            assert publisher.take(wire.PUBACK).reason in (0x00, 0x10)
    expected = {b"%d:%d" % (name, n) for name in (0, 1) for n in range(number)}

    def complete() -> bool:
        for member in members:
            drain(member)
        return seen == expected

    eventually(complete, "every message at some member")
