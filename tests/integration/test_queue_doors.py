"""Who gets at queues and topics by the way round: the steps of an attacker, against a whole broker with two shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest
from pika.exceptions import ChannelClosedByBroker  # type: ignore[import-untyped]

from tests.broker import HOST, Broker, free_ports, running_broker
from tests.conformance import wire
from tests.conformance.client import Client, Will, eventually, tcp

DEADLINE = 30.0
PASSWORD = "secret"
NOT_AUTHORIZED = 0x87
ANYTHING = ("#", "$queue/#", "$dlq/#")
SETTINGS: dict[str, Any] = {
    "queues": [{"name": "orders", "dlq": {"enabled": True}}],
    "auth": {"anonymous": {"publish": list(ANYTHING), "subscribe": list(ANYTHING)}},
    "storage": {"wal_file_bytes": "16MiB", "min_free_bytes": 0},
}


class Node:
    """A broker with users: `ann` writes to `amq.topic` only, `bob` with keys below `bob` only, `wanda` speaks MQTT."""

    def __init__(self, broker: Broker, port: int) -> None:
        self.broker = broker
        self.port = port
        self.open: list[Any] = []
        for name in ("ann", "bob", "wanda"):
            broker.add_user(name, PASSWORD)
        broker.control("set_permissions", "ann", "", r"^amq\.topic$", "")
        broker.control("set_permissions", "bob", "", ".*", ".*")
        broker.control("set_topic_permissions", "bob", "amq.topic", r"^bob\.", ".*")

    def channel(self, name: str = "guest", password: str = "guest") -> Any:
        """A confirming channel of a connection of its own."""
        parameters = pika.ConnectionParameters(
            HOST,
            self.port,
            credentials=pika.PlainCredentials(name, password),
            blocked_connection_timeout=DEADLINE,
        )
        connection = pika.BlockingConnection(parameters)
        self.open.append(connection.close)
        channel = connection.channel()
        channel.confirm_delivery()
        return channel

    def mqtt(self, client_id: str, version: int = wire.V5, **fields: Any) -> Client:
        """A connected client."""
        client = Client(tcp(HOST, self.broker.port), version)
        self.open.append(client.drop)
        answer = client.connect(client_id, **fields)
        assert answer.reason == 0, str(answer)
        return client


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One broker for all."""
    folder: Path = tmp_path_factory.mktemp("doors")
    (port,) = free_ports(1)
    settings = {**SETTINGS, "server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}}}
    with running_broker(folder, workers=2, settings=settings) as broker:
        made = Node(broker, port)
        yield made
        for close in made.open:
            close()


def refused(ask: Callable[[], object]) -> int:
    """The reply code with which a channel is closed."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        ask()
    return int(caught.value.reply_code)


def test_write_permission_on_the_topic_exchange_is_none_on_queues(node: Node) -> None:
    """Review finding 5: neither a queue nor a dead-letter queue is reached, and none is made."""
    assert refused(lambda: node.channel("ann", PASSWORD).basic_publish("", "orders", b"0")) == 403
    ann = node.channel("ann", PASSWORD)
    for key in ("$queue.orders", "$dlq.orders", "$queue.madeup"):
        ann.basic_publish("amq.topic", key, b"1")
    guest = node.channel()
    guest.basic_publish("", "orders", b"own")
    method, _, body = guest.basic_get("orders", auto_ack=True)
    assert (body, method.message_count) == (b"own", 0)
    reader = node.mqtt("reader")
    reader.subscribe("$dlq/orders", "$queue/madeup", qos=1)
    for address in ("$dlq/orders", "$queue/madeup"):
        assert reader.publish(address, b"own", qos=1) == 0
        assert reader.receive().payload == b"own"


@pytest.mark.parametrize("name", ["", "private"])
def test_replies_are_the_requesters_own(node: Node, name: str) -> None:
    """Review finding 9: by MQTT an exclusive queue is neither read nor drained nor written; replies by AMQP arrive."""
    owner = node.channel()
    queue = owner.queue_declare(name, exclusive=True).method.queue
    other = node.channel()
    other.basic_publish("", queue, b"private reply")
    assert refused(lambda: other.basic_get(queue)) == 405
    for number in range(2):  # clients are on both shards
        thief = node.mqtt(f"thief{number}")
        for address in (f"$queue/{queue}", f"$share/g/$queue/{queue}"):
            assert thief.subscribe(address, qos=1, granted=False).reasons == [NOT_AUTHORIZED]
        assert thief.publish(f"$queue/{queue}", b"injected", qos=1) == NOT_AUTHORIZED
        thief.publish(f"$queue/{queue}", b"injected")
        assert thief.ping() == []
        old = node.mqtt(f"old{number}", wire.V4)
        assert old.subscribe(f"$queue/{queue}", qos=1, granted=False).reasons == [0x80]
        will = Will(f"$queue/{queue}", b"injected", 1)
        node.mqtt(f"dying{number}", will=will).drop()
    method, _, body = owner.basic_get(queue, auto_ack=True)
    assert (body, method.message_count) == (b"private reply", 0)


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_copies_take_the_permission_of_their_keys(node: Node, header: str) -> None:
    """Review finding 10: a key that is refused is refused in the headers, too."""
    guest = node.channel()
    queue = guest.queue_declare("", exclusive=True).method.queue
    guest.queue_bind(queue, "amq.topic", "secret.#")
    bob = node.channel("bob", PASSWORD)
    assert refused(lambda: bob.basic_publish("amq.topic", "secret.x", b"1")) == 403
    for keys in (["secret.cc"], ["bob.too", "secret.cc"]):
        properties = pika.BasicProperties(headers={header: keys})
        bob = node.channel("bob", PASSWORD)
        assert refused(lambda: bob.basic_publish("amq.topic", "bob.ok", b"2", properties)) == 403  # noqa: B023
    bob = node.channel("bob", PASSWORD)
    bob.basic_publish(
        "amq.topic", "bob.ok", b"3", pika.BasicProperties(headers={header: ["bob.x"]})
    )
    assert guest.basic_get(queue, auto_ack=True)[0] is None


def test_a_will_takes_the_permission_of_when_it_is_due(node: Node) -> None:
    """Review finding 11: revoked, or its user deleted, it is not published."""
    listener = node.mqtt("listener")
    listener.subscribe("will/#", qos=1)
    fields: dict[str, Any] = {"username": "wanda", "password": PASSWORD.encode()}
    first = node.mqtt("first", will=Will("will/first", b"1", 1), **fields)
    node.broker.control("user", "permit", "wanda", "--publish", "a/#", "--subscribe", "#")
    eventually(
        lambda: first.publish("will/x", b"", qos=1) == NOT_AUTHORIZED, "the new permission holds"
    )
    listener._packets.clear()
    first.drop()
    node.broker.control("user", "permit", "wanda", "--publish", "#", "--subscribe", "#")
    second = node.mqtt("second", will=Will("will/second", b"2", 1), **fields)
    node.broker.control("user", "delete", "wanda")
    second.expect_error(NOT_AUTHORIZED)
    node.mqtt("third", will=Will("will/third", b"3", 1)).drop()
    got = listener.receive()
    assert (got.topic, got.payload) == ("will/third", b"3")
    assert "a will is not published" in node.broker.log()
