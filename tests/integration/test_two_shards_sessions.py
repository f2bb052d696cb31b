"""Sessions on a broker of two shards: one session, whatever transport and shard its connections use."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from tests.conformance import wire
from tests.conformance.client import Client, Packet, eventually, payloads
from tests.conformance.wire import V5, Will
from tests.integration.two_shards import (
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


@pytest.mark.statement("v5:3.1.4-3", "v4:3.1.4-2", "v5:3.1.2-5", "v5:4.4.0-1")
@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize(
    ("first", "second"), [*itertools.permutations([plain, secure, browser], 2), (secure, secure)]
)
def test_take_over_between_transports(
    shards: Shards,
    shard: int,
    first: Callable[[Shards], Client],
    second: Callable[[Shards], Client],
) -> None:
    """Wherever the connections are placed there is one session: taken over, nothing lost, again
    and again."""
    topic = shards.topic()
    identifier = shards.id_on(shard)
    publisher = shards.on(0)
    client = first(shards)
    client.connect(identifier, clean=False, props=KEEP)
    client.subscribe(topic, qos=1)
    for turn, opened in enumerate([second, first, second, first]):
        publisher.publish(topic, b"in flight %d" % turn, qos=1)
        held = client.expect(wire.PUBLISH)
        assert held.payload == b"in flight %d" % turn
        new = opened(shards)
        assert new.connect(identifier, clean=False, props=KEEP).session_present
        client.expect_error(0x8E)
        again = new.receive()
        assert (again.payload, again.packet_id, again.dup) == (held.payload, held.packet_id, True)
        publisher.publish(topic, b"after %d" % turn, qos=1)
        assert new.receive().payload == b"after %d" % turn
        assert new.ping() == []
        client = new


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("opened", [secure, browser])
def test_queue_of_an_absent_session_is_found(
    shards: Shards, shard: int, opened: Callable[[Shards], Client]
) -> None:
    """A session left over TCP is resumed over another transport with its messages in order."""
    topic = shards.topic()
    identifier = shards.id_on(shard)
    client = shards.connect(V5, identifier, clean=False, props=KEEP)
    client.subscribe(topic, qos=1)
    client.disconnect()
    publishers = [shards.on(0), shards.on(1)]
    for publisher in publishers:
        for number in range(50):
            publisher.publish(topic, b"%d" % number, qos=1)
    for turn in range(4):
        client = opened(shards)
        assert client.connect(identifier, clean=False, props=KEEP).session_present
        if turn == 0:
            got = payloads(client.receive() for _ in range(100))
            assert got == [b"%d" % number for number in range(50)] * 2
        publishers[turn % 2].publish(topic, b"live", qos=1)
        assert client.receive().payload == b"live"
        client.drop()


def test_clean_start_ends_the_session_elsewhere(shards: Shards) -> None:
    """A clean start over TLS discards the session that lives on another shard, will included."""
    for shard in (0, 1):
        topic = shards.topic()
        watcher = shards.on(0)
        watcher.subscribe(topic)
        identifier = shards.id_on(shard)
        will = Will(topic, b"ended", properties=[(wire.WILL_DELAY_INTERVAL, 600)])
        client = shards.connect(V5, identifier, clean=False, props=KEEP, will=will)
        client.subscribe(f"{topic}/x", qos=1)
        client.drop()
        for _ in range(2):
            new = secure(shards)
            assert not new.connect(identifier, clean=True).session_present
            shards.on(1 - shard).publish(f"{topic}/x", b"for nobody", qos=1)
            assert new.ping() == []
            new.disconnect()
        assert watcher.receive().payload == b"ended"


def test_connections_racing_for_one_session(shards: Shards) -> None:
    """Many connections with one identifier at once: one is left, and it works."""
    identifier = shards.id_on(0)
    topic = shards.topic()
    clients = [opened(shards) for opened in (plain, secure, browser) * 4]
    for client in clients:
        client.client_id = identifier
        client.send(wire.connect(V5, identifier, clean=False, props=KEEP))

    def alive(client: Client) -> bool:
        try:
            while True:
                if client.next(0.02).kind == wire.DISCONNECT:
                    return False
        except TimeoutError:
            return not client.closed
        except AssertionError:
            return False

    def one_left() -> list[Client]:
        nonlocal clients
        clients = [client for client in clients if alive(client)]
        assert clients, "no connection is left"
        return clients if len(clients) == 1 else []

    (winner,) = eventually(one_left, "a single connection")
    winner.subscribe(topic, qos=1)
    for shard in (0, 1):
        shards.on(shard).publish(topic, b"%d" % shard, qos=1)
        assert winner.receive().payload == b"%d" % shard


class Wanderer:
    """A persistent session that changes its connection, and what it has been sent so far."""

    def __init__(self, shards: Shards, topic: str, qos: int) -> None:
        self.shards = shards
        self.identifier = shards.client_id()
        self.seen: list[bytes] = []
        self.unreleased: set[int] = set()
        self.client = self.connected(plain)
        self.client.subscribe(topic, qos=qos)

    def connected(self, opened: Callable[[Shards], Client]) -> Client:
        """A new connection to the session, over some transport."""
        client = opened(self.shards)
        assert client.connect(self.identifier, clean=False, props=KEEP).reason == 0
        return client

    def take(self, packet: Packet) -> None:
        """Note and acknowledge, as a client does that keeps its own QoS 2 state."""
        if packet.kind == wire.PUBREL:
            self.unreleased.discard(packet.packet_id)
            self.client.send(wire.acknowledge(wire.PUBCOMP, packet.packet_id))
        elif packet.kind == wire.PUBLISH and packet.qos == 2:
            if packet.packet_id not in self.unreleased:
                self.unreleased.add(packet.packet_id)
                self.seen.append(packet.payload)
            self.client.send(wire.acknowledge(wire.PUBREC, packet.packet_id))
        elif packet.kind == wire.PUBLISH:
            self.seen.append(packet.payload)
            self.client.acknowledge(packet)


@pytest.mark.statement("v5:4.4.0-1", "v4:4.4.0-1", "v5:4.3.3-10", "v5:4.5.0-1")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_sessions_wander_under_load(shards: Shards, qos: int, seed: int) -> None:
    """Sessions are taken over again and again, over any transport, while both shards publish:
    QoS 1 loses nothing, QoS 2 neither loses nor repeats, each publisher's order holds."""
    chance = random.Random(seed)
    topic = shards.topic()
    wanderers = [Wanderer(shards, topic, qos) for _ in range(6)]
    publishers = [shards.on(0), shards.on(1)]
    number = 0
    for _ in range(40):
        for name, publisher in enumerate(publishers):
            publisher.send(
                *(
                    wire.publish(V5, topic, b"%d:%d" % (name, n), qos=qos, packet_id=n + 1)
                    for n in range(number, number + 5)
                )
            )
            if qos == 2:
                publisher.send(
                    *(wire.acknowledge(wire.PUBREL, n + 1) for n in range(number, number + 5))
                )
        number += 5
        for wanderer in chance.sample(wanderers, 2):
            for _ in range(chance.randrange(4)):
                try:
                    wanderer.take(wanderer.client.next(0.001))
                except TimeoutError:
                    break
            if chance.random() < 0.3:
                wanderer.client.drop()
            wanderer.client = wanderer.connected(chance.choice([plain, secure, browser]))
    for name, publisher in enumerate(publishers):
        publisher.publish(topic, b"%d:end" % name, qos=qos, packet_id=60_000)
    expected = [[b"%d:%d" % (name, n) for n in range(number)] for name in (0, 1)]
    for wanderer in wanderers:
        while not {b"0:end", b"1:end"} <= set(wanderer.seen):
            wanderer.take(wanderer.client.next())
        for name in (0, 1):
            mine = [each for each in wanderer.seen if each.startswith(b"%d:" % name)][:-1]
            first = list(dict.fromkeys(mine))
            assert first == expected[name], "lost, or out of order"
            if qos == 2:
                assert mine == first, "a QoS 2 message came twice"
