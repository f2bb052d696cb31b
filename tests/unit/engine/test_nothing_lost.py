"""Publishers, groups of consumers, crashes and slow disks in any order: what was confirmed reaches every group.

Seeded and stepped: a seed that fails fails again. Each message that a publisher was told is kept must in the end have
been settled by each group, or lie in the dead-letter queue for it; nothing may come that nobody sent.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import QueueNode, consume, drain, said, user

GROUPS = ("a", "b")
STEPS = 120
ERROR = 0x80


class Play:
    """One run of a seed."""

    def __init__(self, node: QueueNode, random: Random) -> None:
        self.node = node
        self.random = random
        self.sent: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self.captured: set[bytes] = set()
        self.settled: dict[str, set[bytes]] = {group: set() for group in GROUPS}
        self.rejected: dict[str, set[bytes]] = {group: set() for group in GROUPS}
        self.publisher: Client | None = None
        self.unconfirmed: dict[int, bytes] = {}
        self.consumers: dict[str, Client | None] = dict.fromkeys(
            f"{group}-{number}" for group in GROUPS for number in range(2)
        )
        self.places: dict[Client, int] = {}
        self.on_trial: list[tuple[str, str, bytes]] = []

    def connect(self, name: str) -> Client:
        shard = self.random.choice([shard.index for shard in self.node])
        client = self.node.connect(shard, self.node.id_of(shard, name))
        self.places[client] = shard
        return client

    # Steps

    def publish(self) -> None:
        if self.publisher is None or self.publisher.closed:
            self.publisher = self.connect("publisher")
            self.unconfirmed.clear()
        for _ in range(self.random.randint(1, 6)):
            payload = b"%d" % len(self.sent)
            self.sent.add(payload)
            packet_id = self.publisher.packet_id()
            self.unconfirmed[packet_id] = payload
            qos = self.random.choice((1, 1, 2))
            size = self.random.choice((0, 0, 0, 3000))
            body = payload.ljust(len(payload) + size)
            topic = self.random.choice(("$queue/work", "$queue/work/key", "captured/topic"))
            if topic == "captured/topic":
                self.captured.add(payload)
            self.publisher.send(wire.publish(wire.V5, topic, body, qos=qos, packet_id=packet_id))
        self.hear()

    def hear(self) -> None:
        """Take what the publisher is told."""
        if self.publisher is None or self.publisher.closed:
            return
        for packet in drain(self.publisher):
            if packet.kind == wire.PUBCOMP:
                continue
            assert packet.kind in (wire.PUBACK, wire.PUBREC)
            payload = self.unconfirmed.pop(packet.packet_id)
            if packet.reason < ERROR:
                self.confirmed.add(payload)
                if packet.kind == wire.PUBREC:
                    self.publisher.send(wire.acknowledge(wire.PUBREL, packet.packet_id))

    def consumer(self) -> None:
        name = self.random.choice(list(self.consumers))
        group = name[0]
        client = self.consumers[name]
        if client is None or client.closed:
            client = self.consumers[name] = self.connect(name)
            client.send(
                wire.subscribe(
                    wire.V5,
                    client.packet_id(),
                    [wire.Filter(f"$share/{group}/$queue/work", self.random.choice((1, 2)))],
                    user(("prefetch", str(self.random.choice((1, 3, 50))))),
                )
            )
        for packet in drain(client):
            if packet.kind == wire.PUBLISH:
                self.answer(client, group, packet)
            elif packet.kind == wire.PUBREL:
                client.send(wire.acknowledge(wire.PUBCOMP, packet.packet_id))

    def answer(self, client: Client, group: str, packet: object) -> None:
        payload = packet.payload.strip()  # type: ignore[attr-defined]
        assert payload in self.sent
        qos, packet_id = packet.qos, packet.packet_id  # type: ignore[attr-defined]
        kind = wire.PUBACK if qos == 1 else wire.PUBREC
        choice = self.random.random()
        if choice < 0.75:
            client.send(wire.acknowledge(kind, packet_id))
            self.settled[group].add(payload)
        elif choice < 0.85:
            client.send(wire.acknowledge(kind, packet_id, ERROR))
            self.rejected[group].add(payload)

    def leave(self) -> None:
        name = self.random.choice(list(self.consumers))
        client = self.consumers[name]
        if client is not None and not client.closed:
            client.drop()

    def hold(self) -> None:
        self.hear()
        self.node.hold_syncs(not self.node.held)
        self.hear()

    def kill(self) -> None:
        if self.random.random() < 0.5:
            return
        index = self.random.randrange(self.node.workers)
        self.node.hold_syncs(False) if self.random.random() < 0.5 else None
        self.hear()
        self.node.kill(index)
        for client, shard in self.places.items():
            if shard == index:
                client.closed = True
        if self.random.random() < 0.5:
            self.node.advance(self.random.choice((0.1, 2)))
        self.node.hold_syncs(False)
        self.node.start(index)
        self.node.advance(1)
        self.hear()

    def wait(self) -> None:
        self.node.advance(self.random.choice((0.01, 0.5, 6.0)))
        self.hear()

    def checkpoint(self) -> None:
        if not self.node.held:
            self.node.checkpoint(self.random.randrange(self.node.workers))

    # The end

    def finish(self) -> None:
        self.node.hold_syncs(False)
        self.node.advance(3)
        self.hear()
        for client in self.consumers.values():
            if client is not None and not client.closed:
                client.drop()
        self.node.advance(1)
        for group in GROUPS:
            last = self.connect(f"last-{group}")
            last.subscribe(f"$share/{group}/$queue/work", qos=1)
            for _ in range(12):  # those that answer nothing take turns with it
                self.settled[group].update(packet.payload.strip() for packet in consume(last))
                self.node.advance(5.5)
        reader = self.connect("reader")
        reader.subscribe("$queue/log", qos=0, props=user(("start", "first")))
        logged = [packet.payload.strip() for packet in drain(reader)]
        assert not (self.confirmed & self.captured) - set(logged)
        assert set(logged) <= self.captured
        dead = self.connect("dead")
        dead.subscribe("$dlq/work", qos=1)
        self.node.advance(2)
        letters = consume(dead)
        for group in GROUPS:
            gone = {
                packet.payload.strip() for packet in letters if said(packet)["_dlq_group"] == group
            }
            reached = self.settled[group] | gone
            assert not self.confirmed - reached, f"group {group} never got some"
            assert reached <= self.sent


@pytest.mark.parametrize("seed", range(12))
def test_what_is_confirmed_reaches_every_group(make_queues: MakeQueues, seed: int) -> None:
    random = Random(seed)
    node = make_queues(
        {
            "name": "work",
            "topics": ("captured/#",),
            "dlq": {"enabled": True},
            "consumer": {"visibility_timeout": "5s", "delivery_limit": random.choice((3, -1))},
        },
        {"name": "log", "type": "stream", "topics": ("captured/#",)},
        workers=random.choice((1, 2)),
    )
    play = Play(node, random)
    for group in GROUPS:  # a group sees what comes after it was made
        node.connect(0, f"first-{group}").subscribe(f"$share/{group}/$queue/work", qos=1)
        node.advance(0.1)
    steps = [
        *(play.publish, play.publish, play.consumer, play.consumer, play.consumer, play.leave),
        *(play.hold, play.kill, play.wait, play.checkpoint),
    ]
    for _ in range(STEPS):
        random.choice(steps)()
    play.finish()
    assert play.confirmed
