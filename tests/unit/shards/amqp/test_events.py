"""Events that shards publish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.ipc.traffic_messages import ChurnNumbers
from fluxmq.routing.topology.changes import AddEventExchange, AddVhost, SetUserLimits
from fluxmq.routing.topology.names import EVENT_EXCHANGE
from fluxmq.routing.topology.records import Vhost
from fluxmq.sessions.amqp091.ports import ConsumeRequest
from fluxmq.shards.amqp.broker_messages import BrokerMessages
from fluxmq.shards.amqp.events import AGAIN_SECONDS, BrokerEvents
from tests.unit.shards.amqp.support import AmqpClient, AmqpNode, user

MakeAmqp = Callable[..., AmqpNode]
ON = {"amqp": {"event_exchange": True}}


class Watcher:
    """A queue with all events of a node."""

    def __init__(self, node: AmqpNode, key: str = "#") -> None:
        self.node = node
        queue = node.queue("events")
        node.bind(EVENT_EXCHANGE, "events", key)
        node.settle()
        self.keys: list[str] = []
        wanted = ConsumeRequest(queue, "tag", "member", 1000, asker="some connection")
        node.amqp().broker.consume(wanted, self, lambda _: None)
        self.take()

    def cancelled(self) -> None:
        """The queue stays."""

    def deliver(
        self, batch: Any, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Events come."""
        self.keys += [batch.key(index).decode() for index in range(first, first + count)]

    def take(self) -> list[str]:
        """Keys of the events since the last call."""
        self.node.settle()
        keys, self.keys = self.keys, []
        return keys


def test_events_of_a_client_are_published(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, (user(),), **ON)
    watcher = Watcher(node)
    client = AmqpClient(node, 1)
    assert watcher.take() == ["user.authentication.success", "connection.created"]
    client.send(1, "channel.open")
    client.send(1, "queue.declare", queue="mine", durable=True)
    client.send(1, "basic.consume", queue="mine", consumer_tag="c")
    assert watcher.take() == ["channel.created", "queue.created", "consumer.created"]
    client.send(1, "basic.cancel", consumer_tag="c")
    client.send(1, "basic.consume", queue="mine", consumer_tag="d")
    client.send(1, "queue.delete", queue="mine")
    assert watcher.take() == [
        *("consumer.deleted", "consumer.created"),
        *("consumer.deleted", "queue.deleted"),
    ]
    client.send(0, "connection.close", reply_code=200, reply_text="")
    assert watcher.take() == ["channel.closed", "connection.closed"]


def test_what_all_shards_learn_is_told_once(make_amqp: MakeAmqp) -> None:
    node = make_amqp(3, (user(),), **ON)
    watcher = Watcher(node)
    node.control.change(SetUserLimits("anna", {"max-channels": 9}))
    for shard in node:
        shard.broker.alarms.set(("memory",))
    for shard in node:
        shard.broker.alarms.set(())
    for shard in node:
        shard.permissions.set_users(3, (user(), user("bob")))
    keys = watcher.take()
    assert keys == [
        *("user.limits.set", "alarm.set", "alarm.cleared"),
        *("user.created", "permission.created"),
    ]


@pytest.mark.parametrize(("others", "told"), [(["o"], True), (["a"], False), (["o", "a"], False)])
def test_of_several_nodes_that_with_the_lowest_name_tells(
    make_amqp: MakeAmqp, others: list[str], told: bool
) -> None:
    node = make_amqp(1, (user(),), cluster={"node_id": "n"}, **ON)
    watcher = Watcher(node)
    node[0].broker.events.connected = lambda: others
    node.control.change(SetUserLimits("anna", {"max-channels": 9}))
    assert watcher.take() == (["user.limits.set"] if told else [])


def test_nothing_is_made_without_a_binding_or_when_switched_off(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, (user(),), **ON)
    AmqpClient(node)
    node.settle()
    assert not node.amqp().messages.sent
    assert node.control.topology.exchange("/", EVENT_EXCHANGE) is not None
    other = make_amqp(1, (user(),))
    assert other.control.topology.exchange("/", EVENT_EXCHANGE) is None


def test_failed_logins_are_events(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, (user(),), **ON)
    watcher = Watcher(node, "user.authentication.#")
    with pytest.raises(AssertionError):
        AmqpClient(node, 0, "nobody")
    assert watcher.take() == ["user.authentication.failure"]


def test_clients_may_not_publish_events(make_amqp: MakeAmqp) -> None:
    node = make_amqp(1, (user(),), **ON)
    client = AmqpClient(node)
    client.send(1, "channel.open")
    client.publish(1, EVENT_EXCHANGE, "queue.created", b"")
    assert [each.name for each in client.read()][-1] == "channel.close"


def test_the_first_shard_asks_for_the_exchange_until_it_is_there() -> None:
    messages = BrokerMessages()
    first, second = (BrokerEvents(messages, shard, "n", lambda: 0) for shard in range(2))
    assert not first.lacks_exchange(1), "it is not wanted"
    first.enabled = second.enabled = True
    moments = (1, 2, 1 + AGAIN_SECONDS)
    assert [first.lacks_exchange(now) for now in moments] == [True, False, True]
    assert not second.lacks_exchange(1)
    messages.topology.apply_all([AddVhost(Vhost("/")), AddEventExchange()])
    assert not first.lacks_exchange(100)


def test_what_comes_and_goes_is_counted_without_anybody_listening(make_amqp: MakeAmqp) -> None:
    node = make_amqp(2, (user(),))
    client = AmqpClient(node, 1)
    client.send(1, "channel.open")
    for _ in range(2):
        client.send(1, "queue.declare", queue="mine", durable=True)
    client.send(1, "queue.delete", queue="mine")
    client.send(0, "connection.close", reply_code=200, reply_text="")
    node.settle()
    first, second = (ChurnNumbers(*node.amqp(shard).traffic.report().churn) for shard in (0, 1))
    assert second == ChurnNumbers(
        connection_created=1,
        connection_closed=1,
        channel_created=1,
        channel_closed=1,
        queue_declared=2,
    )
    assert first == ChurnNumbers(queue_created=1, queue_deleted=1), "once for all shards"
