"""Takes, consumers of every kind, dead letters through an exchange, crashes and slow disks in any order.

Seeded and stepped: a seed that fails fails again. What was confirmed to its publisher has in the end been settled, was
handed to a consumer that settles by being given it, or lies in one of the two queues; what was durably settled does
not come again, and a message lies nowhere twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

import pytest

from fluxmq.engine.names import QueueInfo
from fluxmq.queues.commands import Verb
from fluxmq.queues.config import QueueConfig, QueueType
from tests.unit.engine.asking import Asker, ask, host_of, publish
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import QueueNode

STEPS = 80
QUEUES = ("source", "target")


class Consumer(Asker):
    """A consumer that notes what it was given. ``settled``: how far it has come with that."""

    settled = 0
    automatic = False


class Play:
    """One run of a seed."""

    def __init__(self, node: QueueNode, random: Random, max_priority: int) -> None:
        self.node = node
        self.random = random
        self.sent = 0
        self.answers: list[tuple[bytes, list[int]]] = []
        self.done: set[bytes] = set()
        """Settled, and that is durable."""
        self.perhaps: set[bytes] = set()
        """Settled or handed out to be settled, and nobody can say yet whether that will last."""
        self.consumers: list[Consumer] = []
        self.configs = [
            QueueConfig(
                "source",
                QueueType.CLASSIC,
                message_ttl=0,
                max_depth=0,
                max_priority=max_priority,
                dead_letter=True,
                dead_letter_exchange="dlx",
                dead_letter_at_least_once=True,
            ),
            QueueConfig("target", QueueType.CLASSIC, message_ttl=0, max_depth=0),
        ]
        self.prepare()

    def prepare(self) -> None:
        """Every shard knows the queues, and its exchanges lead from one to the other."""
        names = self.node[0].queues.names
        for config, beside in zip(self.configs, ("one", "two"), strict=True):
            group = names.info(beside).group
            for shard in self.node:
                shard.queues.names.declare(QueueInfo(config.name, group, config.type), config)
                shard.queues.service.dead_letters.route = self.route
                found = shard.queues.service.find(group)
                if found is not None and found.machine.queue(config.name) is None:
                    found.declare(config)
        self.node.run()

    @staticmethod
    def route(
        _vhost: str, exchange: str, _key: str, _headers: Mapping[str, object]
    ) -> list[str] | None:
        """The one exchange."""
        return ["target"] if exchange == "dlx" else None

    # Steps

    def publish(self) -> None:
        payloads = [b"%d" % number for number in range(self.sent, self.sent + 3)]
        self.sent += 3
        for payload in payloads:
            shard = self.random.randrange(2)
            self.answers.append((payload, publish(self.node, shard, payload, queue="source")))
        if self.random.random() < 0.7:
            self.node.run()

    def attach(self) -> None:
        if len(self.consumers) >= 5:
            return
        values = self.random.choice(
            [{}, {"taking": True}, {"automatic": True}, {"taking": True, "automatic": True}]
        )
        queue = self.random.choice(QUEUES)
        limit = self.random.choice((1, 4, 0))
        priority = self.random.choice((0, 0, 5))
        consumer = Consumer(
            self.node, self.random.randrange(2), queue, limit=limit, priority=priority, **values
        )
        consumer.automatic = values.get("automatic", False)
        self.consumers.append(consumer)

    def take(self) -> None:
        consumer = self.any()
        if consumer is not None and consumer.held is not None:
            consumer.held.take(lambda _found, _ready: None)
            self.node.run()

    def settle(self) -> None:
        consumer = self.any()
        if consumer is None or consumer.settled == len(consumer.payloads):
            return
        at = consumer.settled
        consumer.settled += 1
        verb = self.random.choice((Verb.ACK, Verb.ACK, Verb.RELEASE, Verb.REJECT))
        payload, offset = consumer.payloads[at], consumer.offsets[at]
        if consumer.automatic:
            verb = Verb.ACK
        elif verb == Verb.ACK:
            self.perhaps.add(payload)
        assert consumer.held is not None
        answered = self.settled(payload) if verb == Verb.ACK and not consumer.automatic else None
        consumer.held.settle(verb, [(offset, offset)], 0, b"", answered)
        self.node.run()

    def settled(self, payload: bytes) -> Callable[[int], None]:
        def answered(reason: int) -> None:
            if not reason:
                self.done.add(payload)

        return answered

    def leave(self) -> None:
        consumer = self.any()
        if consumer is None or consumer.held is None:
            return
        if self.random.random() < 0.3:
            consumer.held.stop()
            return
        self.forget(consumer)
        consumer.held.detach()
        self.node.run()

    def change_limit(self) -> None:
        consumer = self.any()
        if consumer is not None and consumer.held is not None:
            consumer.held.set_limit(self.random.choice((1, 3, 0)))

    def hold(self) -> None:
        self.node.hold_syncs(self.random.random() < 0.5)

    def wait(self) -> None:
        self.node.advance(self.random.choice((0.001, 0.01, 0.2)))

    def crash(self) -> None:
        self.node.hold_syncs(False)
        shard = self.random.randrange(2)
        if self.random.random() < 0.3:
            self.node.checkpoint(shard)
        self.node.kill(shard)
        for consumer in list(self.consumers):
            self.forget(consumer)
            if consumer.held is not None:
                consumer.held.detach()
        self.node.start(shard)
        self.node.advance(0.5)
        self.prepare()
        self.node.advance(2)

    # Who and what

    def any(self) -> Consumer | None:
        attached = [consumer for consumer in self.consumers if consumer.held is not None]
        return self.random.choice(attached) if attached else None

    def forget(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        if consumer.automatic:
            self.perhaps.update(consumer.payloads)

    def finish(self) -> Counter[bytes]:
        """Everything that is left in the queues."""
        self.node.hold_syncs(False)
        for consumer in list(self.consumers):
            self.forget(consumer)
            assert consumer.held is not None
            consumer.held.detach()
        self.node.advance(0.2)
        self.node.advance(15)
        left: Counter[bytes] = Counter()
        for queue in QUEUES:
            last = Consumer(self.node, 0, queue, limit=0)
            self.node.advance(0.1)
            assert ask(self.node, 1, "status", queue).ready == 0
            left.update(last.payloads)
            last.settle(Verb.ACK, 0, 1 << 40)
            self.node.advance(0.1)
            assert ask(self.node, 0, "status", queue).unsettled == 0
        return left


@pytest.mark.parametrize("seed", range(16))
def test_what_was_confirmed_is_settled_or_there(make_queues: MakeQueues, seed: int) -> None:
    random = Random(seed)
    node = make_queues({"name": "one"}, {"name": "two"}, workers=2)
    play = Play(node, random, max_priority=random.choice((0, 3)))
    steps = [
        *[play.publish, play.take, play.settle] * 3,
        *[play.attach, play.attach, play.leave, play.wait, play.hold, play.change_limit],
    ]
    for number in range(STEPS):
        if number % 27 == 26:
            play.crash()
        random.choice(steps)()
    left = play.finish()
    confirmed = {payload for payload, answer in play.answers if answer == [0]}
    assert confirmed, "the seed confirms nothing"
    lost = confirmed - left.keys() - play.perhaps - play.done
    assert not lost
    assert not play.done & left.keys(), "what was settled for good is there again"
    assert left.keys() <= {payload for payload, _ in play.answers}
    sent_again = {payload for payload, answer in play.answers if answer != [0]}
    assert all(count == 1 for payload, count in left.items() if payload not in sent_again)
    assert host_of(node, 0, "source") is not None
