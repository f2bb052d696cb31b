"""Queues of clients on several shards: whoever declares one that is there uses it where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fluxmq.routing.topology.changes import DeclareQueue, DeleteQueue
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.shards.amqp.broker import RETRY_SECONDS
from tests.unit.shards.amqp.support import AmqpClient, AmqpNode, user

MakeAmqp = Callable[..., AmqpNode]
KINDS: dict[str, dict[str, Any]] = {
    "transient": {},
    "auto-delete": {"auto_delete": True},
    "expiring": {"arguments": {"x-expires": 600_000}},
    "durable": {"durable": True},
    "durable auto-delete": {"durable": True, "auto_delete": True},
    "quorum": {"durable": True, "arguments": {"x-queue-type": "quorum"}},
    "stream": {"durable": True, "arguments": {"x-queue-type": "stream"}},
}
FROM_THE_FIRST = {"x-stream-offset": "first"}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
BOTH_WAYS = pytest.mark.parametrize(("here", "there"), [(0, 1), (1, 0)])


def names(client: AmqpClient) -> list[str]:
    """The methods that have come."""
    return [each.name for each in client.read()]


def connected(node: AmqpNode, shard: int) -> AmqpClient:
    """A client with a channel."""
    client = AmqpClient(node, shard)
    client.send(1, "channel.open")
    assert names(client) == ["channel.open-ok"]
    return client


def wish(node: AmqpNode, shard: int, **values: Any) -> QueueRecord:
    """A queue as a client of that shard declares it: in memory there, unless it is durable."""
    queue = QueueRecord("/", "q", **values)
    return replace(queue, group=node.amqp(shard).broker.group_for(queue))


def counts(client: AmqpClient, **values: Any) -> tuple[int, int]:
    """Messages and consumers of a queue, as its declaration tells at once."""
    client.send(1, "queue.declare", queue="q", **values)
    (answer,) = client.read()
    assert answer.name == "queue.declare-ok", answer
    return answer.fields["message_count"], answer.fields["consumer_count"]


@EVERY_KIND
@BOTH_WAYS
def test_a_queue_is_declared_again_from_another_shard(
    make_amqp: MakeAmqp, kind: str, here: int, there: int
) -> None:
    """F1: the answer comes at once, and everything that can be done with a queue can be done from there."""
    node = make_amqp(2, (user(),))
    first, second = connected(node, here), connected(node, there)
    assert counts(first, **KINDS[kind]) == (0, 0)
    assert counts(second, **KINDS[kind]) == (0, 0)
    second.publish(1, "", "q", b"1")
    node.settle()
    assert counts(second, passive=True) == (1, 0)
    assert counts(second, **KINDS[kind]) == (1, 0)
    second.send(1, "basic.qos", prefetch_count=1)
    second.send(1, "basic.consume", queue="q", consumer_tag="tag", arguments=FROM_THE_FIRST)
    node.settle()
    assert names(second)[:3] == ["basic.qos-ok", "basic.consume-ok", "basic.deliver"]
    assert counts(first, **KINDS[kind])[1] == 1
    second.send(1, "queue.delete", queue="q")
    node.settle()
    assert "queue.delete-ok" in names(second)
    assert node.engine("q") is None


@EVERY_KIND
def test_both_declare_a_queue_at_once(make_amqp: MakeAmqp, kind: str) -> None:
    """F1: control decides between them; who comes second uses the first one's queue."""
    node = make_amqp(2, (user(),))
    clients = [connected(node, shard) for shard in (0, 1)]
    node.control.held = True
    for client in clients:
        client.send(1, "queue.declare", queue="q", **KINDS[kind])
    node.control.held = False
    node.control.work()
    node.settle()
    assert [names(client) for client in clients] == [["queue.declare-ok"]] * 2


def test_a_declaration_without_an_answer_is_followed_by_others(make_amqp: MakeAmqp) -> None:
    """F1: what comes behind ``no-wait`` waits for the queue that is there."""
    node = make_amqp(2, (user(),))
    first, second = connected(node, 0), connected(node, 1)
    assert counts(first, auto_delete=True) == (0, 0)
    second.send(1, "queue.declare", queue="q", auto_delete=True, nowait=True)
    second.send(1, "basic.get", queue="q", no_ack=True)
    assert names(second) == ["basic.get-empty"]


def test_another_connections_exclusive_queue_stays_its_own(make_amqp: MakeAmqp) -> None:
    """F1: 405 for it on each shard, also when both declare it at once."""
    node = make_amqp(2, (user(),))
    clients = [connected(node, shard) for shard in (0, 1)]
    node.control.held = True
    for client in clients:
        client.send(1, "queue.declare", queue="q", exclusive=True)
    node.control.held = False
    node.control.work()
    node.settle()
    (answer,), (refused,) = clients[0].read(), clients[1].read()
    assert answer.name == "queue.declare-ok"
    assert (refused.name, refused.fields["reply_code"]) == ("channel.close", 405)


def declare(node: AmqpNode, wanted: QueueRecord, shard: int) -> list[Refusal | None]:
    """Ask for a queue, and go no further than that."""
    answers: list[Refusal | None] = []
    node.amqp(shard).broker.change([DeclareQueue(wanted)], answers.append)
    node.run()
    return answers


def pass_patience(node: AmqpNode) -> None:
    """All the time that a host is asked again."""
    for _ in range(round(RETRY_SECONDS * 2) + 2):
        node.advance(0.5)


def out_of_reach(node: AmqpNode, queue: QueueRecord) -> QueueRecord:
    """The same queue in the memory of something that does not answer."""
    elsewhere = QueueRecord("/", queue.name, auto_delete=queue.auto_delete, group="ephemeral-7")
    node.control.change(DeclareQueue(elsewhere))
    return elsewhere


def test_a_queue_whose_home_does_not_answer_is_said_to_be_down(make_amqp: MakeAmqp) -> None:
    """F1: an error of the channel, as with a passive declaration, and not of the connection."""
    node = make_amqp(2)
    wanted = wish(node, 0, auto_delete=True)
    out_of_reach(node, wanted)
    answers = declare(node, wanted, 0)
    assert answers == []
    pass_patience(node)
    (refusal,) = answers
    assert refusal is not None
    assert (refusal.code, "is down or inaccessible" in refusal.text) == (404, True)


def test_a_queue_that_is_declared_again_elsewhere_is_asked_there(make_amqp: MakeAmqp) -> None:
    """F1: who waits for a queue's host follows the queue."""
    node = make_amqp(2)
    wanted = wish(node, 0, auto_delete=True)
    out_of_reach(node, wanted)
    answers = declare(node, wanted, 0)
    node.control.change(DeleteQueue("/", "q", by_broker=True))
    node.control.change(DeclareQueue(wish(node, 1, auto_delete=True)))
    node.settle()
    assert answers == [None]


def test_who_waits_for_a_queue_takes_no_other_for_it(make_amqp: MakeAmqp) -> None:
    """F1: another connection's exclusive queue of the same name is another queue."""
    node = make_amqp(2)
    wanted = wish(node, 0)
    elsewhere = out_of_reach(node, wanted)
    purged: list[Any] = []
    node.amqp(0).broker.purge(elsewhere, purged.append)
    answers = declare(node, wanted, 0)
    node.control.change(DeleteQueue("/", "q", by_broker=True))
    theirs = QueueRecord("/", "q", exclusive=True, owner="1.5", group="ephemeral-1")
    node.control.change(DeclareQueue(theirs))
    node.settle()
    assert answers == [None], "it was there, and has ended"
    (refusal,) = purged
    assert refusal.code == 404
