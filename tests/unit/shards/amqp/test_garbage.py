"""Queues that end leave nothing behind: no cycle for the collector, and no row in any table.

As `tests/unit/shards/test_garbage.py` has it for connections and sessions: each way of coming and going is repeated with
collection switched off. Tables are not listed: every container in the process that has grown by an entry for each queue is
found, unless it is one of those that are bounded by something else.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.auth.permissions import Permissions
from fluxmq.protocols.amqp091.ledger import ChannelLedger
from fluxmq.queues import dispatch
from fluxmq.replication.shared_log import SyncTimes
from fluxmq.sessions.amqp091.deliveries import DeliveryHeads
from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.wal_cache import CachedEntry, RecentEntries
from tests.differential import wire
from tests.unit.shards.amqp.conftest import MakeAmqp
from tests.unit.shards.amqp.support import AmqpClient, AmqpNode, user

Churn = Callable[[AmqpNode, AmqpClient, int], None]
WARM_UP = 10
ROUNDS = 40
ALLOWED = 30
"""Objects in cycles that may be found after all rounds: less than one per round."""
BOUNDED = (BatchCache, ChannelLedger, DeliveryHeads, Permissions, RecentEntries, SyncTimes)
"""Keep as many entries as a constant beside them says, whatever queues there were."""


def read(client: AmqpClient) -> list[wire.Method]:
    client.node.settle()
    return client.read()


def declare(client: AmqpClient, queue: str, **fields: Any) -> str:
    """Declare a queue; its name."""
    client.send(1, "queue.declare", queue=queue, **fields)
    (answer,) = [each for each in read(client) if each.name == "queue.declare-ok"]
    name: str = answer.fields["queue"]
    return name


def consume(client: AmqpClient, queue: str, **fields: Any) -> list[int]:
    """Consume a queue; the tags of what is delivered at once."""
    client.send(1, "basic.consume", queue=queue, consumer_tag="c", **fields)
    return [each.fields["delivery_tag"] for each in read(client) if each.name == "basic.deliver"]


def use(client: AmqpClient, queue: str) -> None:
    """One message goes through it."""
    client.publish(1, "", queue, b"x" * 100)
    (tag,) = consume(client, queue)
    client.send(1, "basic.ack", delivery_tag=tag)


def delete(client: AmqpClient, queue: str) -> None:
    client.send(1, "queue.delete", queue=queue)
    assert "queue.delete-ok" in [each.name for each in read(client)]


def exclusive(node: AmqpNode, client: AmqpClient, number: int) -> None:
    """A reply queue."""
    name = declare(client, "", exclusive=True)
    use(client, name)
    client.send(1, "basic.cancel", consumer_tag="c")
    delete(client, name)


def durable(node: AmqpNode, client: AmqpClient, number: int) -> None:
    name = declare(client, f"d{number}", durable=True)
    use(client, name)
    client.send(1, "basic.cancel", consumer_tag="c")
    delete(client, name)


def transient(node: AmqpNode, client: AmqpClient, number: int) -> None:
    name = declare(client, f"t{number}")
    use(client, name)
    client.send(1, "basic.cancel", consumer_tag="c")
    delete(client, name)


def deleted_with_consumers(node: AmqpNode, client: AmqpClient, number: int) -> None:
    name = declare(client, f"d{number}", durable=True)
    client.publish(1, "", name, b"unsettled")
    assert len(consume(client, name)) == 1
    client.publish(1, "", name, b"unsettled, too")
    delete(client, name)


def auto_delete(node: AmqpNode, client: AmqpClient, number: int) -> None:
    name = declare(client, f"a{number}", auto_delete=True)
    use(client, name)
    client.send(1, "basic.cancel", consumer_tag="c")


def bound(node: AmqpNode, client: AmqpClient, number: int) -> None:
    name = declare(client, "", exclusive=True)
    for exchange in ("amq.topic", "amq.fanout", "amq.direct", "amq.headers"):
        client.send(1, "queue.bind", queue=name, exchange=exchange, routing_key=f"k.{number}")
        read(client)
        client.publish(1, exchange, f"k.{number}", b"x")
    delete(client, name)


def got(node: AmqpNode, client: AmqpClient, number: int) -> None:
    """Messages are taken one by one; one is left unsettled."""
    name = declare(client, f"g{number}", durable=True)
    for _ in range(2):
        client.publish(1, "", name, b"x")
    client.send(1, "basic.get", queue=name, no_ack=True)
    client.send(1, "basic.get", queue=name)
    client.send(1, "basic.get", queue=name)
    delete(client, name)


def expired(node: AmqpNode, client: AmqpClient, number: int) -> None:
    declare(client, f"e{number}", durable=True, arguments={"x-expires": 1000})
    node.advance(2)
    client.send(1, "queue.declare", queue=f"e{number}", durable=True)  # it is another one
    delete(client, f"e{number}")


def dead_lettered(node: AmqpNode, client: AmqpClient, number: int) -> None:
    target = declare(client, f"dead{number}", durable=True)
    told = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target, "x-message-ttl": 50}
    name = declare(client, f"d{number}", durable=True, arguments=told)
    client.publish(1, "", name, b"rejected")
    (tag,) = consume(client, name)
    client.send(1, "basic.nack", delivery_tag=tag, requeue=False)
    client.send(1, "basic.cancel", consumer_tag="c")
    client.publish(1, "", name, b"expires")
    node.advance(1)
    for each in (name, target):
        delete(client, each)


def prioritised(node: AmqpNode, client: AmqpClient, number: int) -> None:
    name = declare(client, f"p{number}", durable=True, arguments={"x-max-priority": 5})
    use(client, name)
    delete(client, name)


def stream(node: AmqpNode, client: AmqpClient, number: int) -> None:
    name = declare(client, f"s{number}", durable=True, arguments={"x-queue-type": "stream"})
    client.publish(1, "", name, b"x")
    client.send(1, "basic.qos", prefetch_count=10)
    assert len(consume(client, name, arguments={"x-stream-offset": "first"})) == 1
    delete(client, name)


def with_its_connection(node: AmqpNode, client: AmqpClient, number: int) -> None:
    """The connection of an exclusive queue breaks, with a message unsettled."""
    other = AmqpClient(node, number % 2)
    other.send(1, "channel.open")
    name = declare(other, "", exclusive=True)
    other.publish(1, "", name, b"x")
    assert len(consume(other, name)) == 1
    other._sock.close()
    node._sockets.remove(other._sock)
    node.settle()


def refused(node: AmqpNode, client: AmqpClient, number: int) -> None:
    """A name that nobody has: the channel is closed."""
    client.send(2, "channel.open")
    client.send(2, "queue.declare", queue=f"none{number}", passive=True)
    assert "channel.close" in [each.name for each in read(client)]
    client.send(2, "channel.close-ok")


CHURNS = [
    exclusive,
    durable,
    transient,
    deleted_with_consumers,
    auto_delete,
    bound,
    got,
    expired,
    dead_lettered,
    prioritised,
    stream,
    with_its_connection,
    refused,
]


# A function within a function that mypyc compiled is a cycle by itself, and is left to the collector.
@pytest.mark.uncompiled
@pytest.mark.parametrize("churn", CHURNS, ids=lambda churn: churn.__name__)
def test_no_cycles_and_nothing_kept(make_amqp: MakeAmqp, churn: Churn) -> None:
    """Review findings 17 and 18: 52 objects in cycles stayed of each queue, and its configuration."""
    node = make_amqp(2, (user(),))
    client = AmqpClient(node)
    client.send(1, "channel.open")

    def rounds(first: int, count: int) -> None:
        for number in range(first, first + count):
            churn(node, client, number)
            read(client)

    rounds(0, WARM_UP)
    gc.collect()
    before = {id(each): len(each) for each in containers()}
    gc.disable()
    try:
        rounds(WARM_UP, ROUNDS)
        node.advance(20)
        grown = found_grown(before)
        gc.set_debug(gc.DEBUG_SAVEALL)
        found = gc.collect()
        kinds = [type(thing).__name__ for thing in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert found <= ALLOWED, f"{found} objects in cycles: {kinds[:200]}"
    assert grown == []


def containers() -> list[Any]:
    """Everything in this process that may be a table."""
    return [each for each in gc.get_objects() if isinstance(each, (dict, list, set, deque))]


def found_grown(before: dict[int, int]) -> list[str]:
    """Containers with an entry more for every round, of which each of two shards may have its half."""
    found = []
    for each in containers():
        # Tables are there since the warm-up; what is new may be another test's, or the interpreter's.
        if each is before or id(each) not in before or len(each) < before[id(each)] + ROUNDS // 4:
            continue
        holders = gc.get_referrers(each)
        if any(isinstance(holder, BOUNDED) for holder in holders) or is_log(each):
            continue
        if any(is_of_pytest(holder) for holder in holders):
            continue
        found.append(f"{type(each).__name__} of {len(each)}: {str(each)[:200]}")
    return found


def is_of_pytest(holder: object) -> bool:
    """Whether something holds the tests that this process is still to run: more may come at any moment."""
    return type(holder).__module__ == "xdist.remote" or (
        isinstance(holder, dict) and "_has_items_event" in holder
    )


def is_log(container: Any) -> bool:
    """Whether it is what a log keeps of its entries until the next checkpoint."""
    values = container.values() if isinstance(container, dict) else container
    return any(isinstance(each, CachedEntry) for each in values)


@pytest.mark.uncompiled
def test_timers_of_queues_that_are_gone_are_not_kept_until_their_time(
    make_amqp: MakeAmqp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Review finding 17: a queue that would have expired in a day leaves no timer for that long."""
    monkeypatch.setattr(dispatch, "STALE_TIMERS_MAX", 8)
    node = make_amqp(1, (user(),))
    client = AmqpClient(node)
    client.send(1, "channel.open")
    for number in range(40):
        name = declare(client, f"e{number}", arguments={"x-expires": 86_400_000})
        delete(client, name)
    memory = node[0].queues.service.ephemeral.dispatch
    assert len(memory._timers) <= 2 * len(memory._alarms) + 8
