"""The dispatcher under any course of events: nothing given twice at a time, nothing forgotten, attempts counted.

Entries may wait (a slow disk), leaders may change and lose what was not applied, consumers come, go
and fall silent. In the end everything that was stored is acknowledged or dead-lettered in every group.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.model.batch_format import DELAY, EXPIRY
from fluxmq.model.message_batch import build_message
from fluxmq.model.properties import Item, PropertyKind, encode
from fluxmq.queues import commands
from fluxmq.queues.commands import Verb
from fluxmq.queues.consumers import ConsumerDelivery, ConsumerTerms, GroupConsumer
from fluxmq.queues.limits import CLAIM_GRANULE
from fluxmq.queues.pending_ledger import NOBODY
from tests.unit.queues.support import NOW, SECOND, Host, batch_of

VISIBILITY = 10 * SECOND
FILTER = b"a"

SMALL = st.integers(0, 9)
ACTIONS = st.sampled_from(
    [
        *["publish", "publish", "run", "run", "run", "ack", "ack", "ack", "settle", "settle"],
        *["attach", "detach", "wait", "hold", "release", "release", "lead", "credit", "dead"],
        *["delayed", "expiring", "take", "stop", "limit", "ranked"],
    ]
)
STEPS = st.lists(st.tuples(ACTIONS, SMALL, SMALL, SMALL), min_size=10, max_size=80)


class World:
    """A host, its consumers, and what is known of every message from outside."""

    def __init__(self, claim_batch: int, delivery_limit: int, max_priority: int) -> None:
        self.host = Host()
        self.queue = self.host.declare(
            dead_letter=True,
            claim_batch=claim_batch,
            visibility_timeout=VISIBILITY,
            delivery_limit=delivery_limit,
            max_priority=max_priority,
            message_ttl=0,
            max_depth=0,
        )
        self.groups = ("g", "g@a")
        for name, pattern in zip(self.groups, (b"", FILTER), strict=True):
            self.host.do(commands.create_group(self.queue.id, name, filter_=pattern))
        self.consumers: list[GroupConsumer] = []
        self.limits: dict[GroupConsumer, int] = {}
        """What each was allowed to hold when it had most."""
        self.out: dict[tuple[str, int], tuple[GroupConsumer, int]] = {}
        self.delivered: dict[tuple[str, int], int] = {}
        self.automatic: set[tuple[str, int]] = set()
        """Settled by being given; what was under way when a leader went may come again."""
        self.buried: set[tuple[str, int]] = set()
        self.unsure = False

    def run(self, messages_max: int = 1_000) -> None:
        """One tick."""
        host = self.host
        host.flush()
        for queue_id in host.dispatch.due(host.now):
            step = host.dispatch.run(queue_id, host.now, messages_max)
            for delivery in step.deliveries:
                self.check(delivery)
            for letter in step.dead:
                self.buried.add((letter.group, letter.offset))
                host.dead.append(letter)
            host.proposed += step.commands
        host.flush()

    def check(self, delivery: ConsumerDelivery) -> None:
        """What must hold of a delivery."""
        consumer = delivery.consumer
        assert consumer in self.consumers, "messages for a consumer that is gone"
        assert consumer.unacked.count <= max(consumer.limit, self.limits[consumer])
        assert consumer.credit >= 0, "more than was asked for"
        assert not consumer.stopped
        for index in range(delivery.first, delivery.first + delivery.count):
            offset = delivery.batch.base_offset + index
            key = (consumer.group_name, offset)
            if consumer.terms.filter:
                assert delivery.batch.key(index) == FILTER
            delay = delivery.batch.delay(index)
            assert delay <= self.host.now, "a delayed message came too early"
            if key in self.out:
                assert self.out[key][1] <= self.host.now, "given to two at once"
            attempts = self.delivered.get(key, 0) + 1
            assert delivery.attempts == attempts or (self.unsure and delivery.attempts <= attempts)
            self.delivered[key] = delivery.attempts
            assert key not in self.automatic or self.unsure, "given again after it was settled"
            if consumer.automatic:
                self.automatic.add(key)
                continue
            self.out[key] = (consumer, self.host.now + VISIBILITY)

    def settle(self, consumer: GroupConsumer, verb: Verb, first: int, last: int) -> None:
        """Settle a range, whatever the consumer holds of it."""
        mine = {
            offset
            for offset in range(first, last + 1)
            if self.out.get((consumer.group_name, offset), (None, 0))[0] is consumer
        }
        settlement = self.host.dispatch.consumers.settle(
            consumer, verb, [(first, last)], self.host.now
        )
        if consumer.automatic:
            assert settlement.commands == []
            return
        assert settlement.settled == len(mine)
        assert settlement.missing == last - first + 1 - len(mine)
        for offset in mine:
            del self.out[(consumer.group_name, offset)]
        self.host.proposed += settlement.commands

    def attach(self, group: int, limit: int, kind: int = 0) -> None:
        """A consumer comes; `kind`: one that takes, one that settles by taking, preferred ones."""
        pattern = FILTER if group else b""
        consumer, proposals = self.host.dispatch.consumers.attach(
            self.queue.id,
            ConsumerTerms(
                "g",
                f"m{len(self.consumers)}",
                filter=pattern,
                limit=limit,
                priority=kind % 3,
                automatic=kind in (5, 6),
                taking=kind in (6, 7),
            ),
        )
        self.consumers.append(consumer)
        self.limits[consumer] = limit
        self.host.proposed += proposals

    def detach(self, consumer: GroupConsumer) -> None:
        """A consumer goes."""
        self.consumers.remove(consumer)
        self.host.proposed += self.host.dispatch.consumers.detach(consumer)
        self.out = {key: value for key, value in self.out.items() if value[0] is not consumer}

    def lead(self) -> None:
        """Another leader: what was not applied is lost."""
        host = self.host
        host.held_back.clear()
        host.proposed.clear()
        host.hold = False
        self.consumers.clear()
        self.out.clear()
        host.dead.clear()
        self.unsure = True
        host.lead(host.term + 1)

    def report_dead(self) -> None:
        """The dead letters handed out so far were stored."""
        for letter in self.host.dead:
            at = letter.offset
            self.host.proposed.append(
                commands.dead_lettered(letter.queue_id, letter.group_id, [(at, at)])
            )
        self.host.dead.clear()

    def finish(self) -> None:
        """Let everything come to its end."""
        host = self.host
        host.release()
        for consumer in list(self.consumers):
            self.detach(consumer)
        host.flush()
        host.pass_time(400 * SECOND)
        self.attach(0, 1_000)
        self.attach(1, 1_000)
        for _ in range(12):
            self.run()
            for (_, offset), (consumer, _) in list(self.out.items()):
                self.settle(consumer, Verb.ACK, offset, offset)
            self.report_dead()
        self.run()


def act(world: World, step: tuple[Any, ...]) -> None:
    """One step."""
    action, a, b, c = step
    host = world.host
    if action == "publish":
        keys = [FILTER if (number * (b + 1)) % 3 else b"b" for number in range(a + 1)]
        data = batch_of([b"x"] * (a + 1), keys if c & 1 else FILTER if c & 2 else b"b")
        host.proposed.append(commands.append(world.queue.id, data))
    elif action in ("delayed", "expiring"):
        times = [host.now + ((number + b) % 3) * c * SECOND for number in range(a + 1)]
        flag = DELAY if action == "delayed" else EXPIRY
        data = batch_of([b"x"] * (a + 1), FILTER, flags=flag, eights=[times])
        host.proposed.append(commands.append(world.queue.id, data))
    elif action == "run":
        world.run(1 + a * b)
    elif action == "attach" and len(world.consumers) < 5:
        world.attach(a & 1, 1 + b * c, a)
    elif action == "ranked":
        for level in (a, b, c):
            block = encode([Item(PropertyKind.PRIORITY, level)])
            data = build_message(FILTER, block, b"x", host.now)
            host.proposed.append(commands.append(world.queue.id, data))
    elif action == "wait":
        host.pass_time((1, SECOND, 5 * SECOND, VISIBILITY + CLAIM_GRANULE)[a % 4])
    elif action == "hold":
        host.hold = True
    elif action == "release":
        host.release()
    elif action == "lead" and b > 6:
        world.lead()
    elif action == "dead":
        world.report_dead()
    elif world.consumers:
        consumer = world.consumers[a % len(world.consumers)]
        unacked = list(consumer.unacked)
        first = (unacked[0][0] if unacked else 0) + (b if c & 1 else 0)
        if action == "ack":
            world.settle(consumer, Verb.ACK, first, first + b)
        elif action == "settle":
            world.settle(consumer, Verb(2 + c % 3), first, first + b // 2)
        elif action == "detach":
            world.detach(consumer)
        elif action == "take" and consumer.taking:
            host.dispatch.consumers.credit(consumer, 1)
            world.run()
            host.dispatch.consumers.credit(consumer, -1)
        elif action == "stop":
            host.proposed += host.dispatch.consumers.stop(consumer)
        elif action == "limit":
            world.limits[consumer] = max(world.limits[consumer], 1 + b)
            host.dispatch.consumers.set_limit(consumer, 1 + b)
        elif action == "credit" and not consumer.taking:
            host.dispatch.consumers.credit(consumer, b)


@given(STEPS, st.sampled_from([1, 3, 100]), st.sampled_from([0, 0, 3]), st.sampled_from([0, 4]))
def test_everything_stored_is_settled_and_nothing_is_given_to_two(
    steps: list[tuple[Any, ...]], claim_batch: int, delivery_limit: int, max_priority: int
) -> None:
    """See the module."""
    world = World(claim_batch, delivery_limit, max_priority)
    for step in steps:
        act(world, step)
    world.finish()
    queue = world.queue
    for name in world.groups:
        group = queue.group(name)
        assert group is not None
        assert (group.cursor, group.pending.count, group.dead.count) == (queue.next_offset, 0, 0)
        for batch in world.host.log[queue.id]:
            for index in range(batch.count):
                key = (name, batch.base_offset + index)
                if name == "g" or batch.key(index) == FILTER:
                    assert key in world.delivered or key in world.buried, "never offered"
                else:
                    assert key not in world.delivered
    assert queue.kept == queue.next_offset
    assert world.host.now > NOW
    assert all(each.state.holder != NOBODY for each in queue.nobodys.pending)
