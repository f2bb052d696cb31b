"""Random histories of a client that goes from node to node while messages are published: none is lost, none of QoS 2
comes twice."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.node import drain
from tests.unit.shards.plane import Plane
from tests.unit.shards.test_sessions_cluster import MakePlane, begin, decide, holders, make_plane

__all__ = ["make_plane"]


lives = itertools.count()


class Publisher:
    """Publishes, and knows what was acknowledged."""

    def __init__(self, plane: Plane, node: int) -> None:
        self.client = plane.net.client(node)
        self.name = f"{node}.{next(lives)}"
        self.numbers = itertools.count()
        self.open: dict[int, bytes] = {}
        self.acknowledged: list[bytes] = []
        self.sent: list[bytes] = []

    def publish(self, qos: int) -> None:
        """Publish the next message."""
        packet_id = self.client.packet_id()
        payload = f"{self.name} {qos} {next(self.numbers)}".encode()
        self.open[packet_id] = payload
        self.sent.append(payload)
        self.client.send(wire.publish(wire.V5, "t", payload, qos=qos, packet_id=packet_id))

    def step(self) -> None:
        """Take answers."""
        for packet in drain(self.client):
            if packet.kind in (wire.PUBACK, wire.PUBREC):
                payload = self.open.pop(packet.packet_id)
                if packet.reason < 0x80:
                    self.acknowledged.append(payload)
                    if packet.kind == wire.PUBREC:
                        self.client.send(wire.acknowledge(wire.PUBREL, packet.packet_id))


class Roamer:
    """A client with a persistent session that connects to one node after the other."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.client: Client | None = None
        self.got: list[bytes] = []
        self.open: set[int] = set()
        self.connected = False
        self.known = False

    def connect(self, node: int) -> None:
        """Leave the present connection as it is, and connect to a node."""
        if self.client is not None:
            self.step()
        self.client = begin(self.plane, node)
        self.connected = False

    def step(self) -> None:
        """Take and answer what has come."""
        client = self.client
        for packet in drain(client) if client is not None else ():
            assert client is not None
            if packet.kind == wire.CONNACK:
                self.connected = packet.reason == 0
                if self.connected:
                    assert packet.session_present == self.known, "the session is lost"
                    self.known = True
            elif packet.kind == wire.PUBLISH:
                if packet.qos == 1 or packet.packet_id not in self.open:
                    self.got.append(packet.payload)
                if packet.qos == 2:
                    self.open.add(packet.packet_id)
                client.send(
                    wire.acknowledge((0, wire.PUBACK, wire.PUBREC)[packet.qos], packet.packet_id)
                )
            elif packet.kind == wire.DISCONNECT:
                self.connected = False  # an older connection came late, and took the session
            elif packet.kind == wire.PUBREL:
                self.open.discard(packet.packet_id)
                client.send(wire.acknowledge(wire.PUBCOMP, packet.packet_id))
        if client is not None and client.closed:
            self.connected = False


def history(plane: Plane, random: Random, steps: int, *, crashes: bool = False) -> None:
    """Let a client roam while messages are published, and links and etcd are slow; with ``crashes``
    the shards of nodes are killed, too, and streams cut."""
    net, count = plane.net, len(plane.net.nodes)
    plane.choose = random.randrange
    publishers = {node: Publisher(plane, node) for node in range(count)}
    ended: list[Publisher] = []
    roamer = Roamer(plane)
    roamer.connect(0)
    roamer.step()
    assert roamer.client is not None
    roamer.client.subscribe("t", qos=2)
    ends = list(net.links.values())
    for _ in range(steps):
        match random.randrange(10):
            case 0 | 1 | 2 if publishers:
                random.choice([*publishers.values()]).publish(random.randint(1, 2))
            case 3 if publishers:
                roamer.connect(random.choice([*publishers]))
            case 4:
                random.choice(ends).held = random.random() < 0.7
            case 5:
                for connection in plane.of(random.randrange(count)):
                    connection.undecided = random.random() < 0.5
            case 6:
                net.advance(random.choice((0.1, 0.3, 1.0)))
            case 7:
                roamer.step()
            case 8:
                for end in random.sample(ends, 2):
                    end.held = False
            case 9 if crashes and random.random() < 0.3:
                node = random.randrange(count)
                if random.random() < 0.5:
                    plane.lives[net.names[node]] += "'"
                if node in publishers:
                    publishers[node].step()
                    ended.append(publishers.pop(node))
                net.restart(node)
            case 9 if crashes and random.random() < 0.3:
                one, other = random.sample(range(count), 2)
                net.cut(one, other)
            case _ if crashes and random.random() < 0.3:
                net.connect(*random.sample(range(count), 2))
            case _ if publishers:
                random.choice([*publishers.values()]).step()
        net.run()
        for node in {*range(count)} - {*publishers}:
            if net.met(node):  # it lets clients in
                decide(plane, node)
                publishers[node] = Publisher(plane, node)
    for end in ends:
        end.held = False
    net.connect()
    for node in range(count):
        decide(plane, node)
    net.advance(15)
    for _ in range(20):
        if not roamer.connected:
            roamer.connect(random.randrange(count))
        net.advance(1)
        roamer.step()
        for each in publishers.values():
            each.step()
    assert roamer.connected
    assert len(holders(plane)) == 1
    assert not any(each.open for each in publishers.values()), "every publisher is answered"
    check([*ended, *publishers.values()], roamer, once=not crashes)
    (node,) = holders(plane)
    assert list(plane.records) == [("c", "t")], "the record is as it was, or doubled"
    assert plane.records["c", "t"][0][0] == net.names[node], "where the session is"


def check(publishers: list[Publisher], roamer: Roamer, *, once: bool) -> None:
    """Nothing acknowledged is lost, of QoS 2 nothing doubled, and what is new comes in order."""
    for each in publishers:
        for qos in (1, 2):
            head = f"{each.name} {qos} ".encode()
            sent = [payload for payload in each.sent if payload.startswith(head)]
            got = [payload for payload in roamer.got if payload.startswith(head)]
            new = list(dict.fromkeys(got))
            missing = {*each.acknowledged} & {*sent} - {*got}
            assert not missing, f"lost: {missing}"
            if once:
                assert qos == 1 or got == new, f"doubled: {got}"
                assert new == [payload for payload in sent if payload in new], "in order"


@pytest.mark.parametrize("seed", range(20))
def test_histories(make_plane: MakePlane, seed: int) -> None:
    random = Random(seed)
    plane = make_plane(*(random.randint(1, 2) for _ in range(random.randint(2, 3))))
    history(plane, random, 120)


@pytest.mark.parametrize("seed", range(30))
def test_histories_with_crashes(make_plane: MakePlane, seed: int) -> None:
    """Of nodes, and of streams between them."""
    random = Random(seed)
    plane = make_plane(*(random.randint(1, 2) for _ in range(random.randint(2, 3))))
    history(plane, random, 120, crashes=True)
