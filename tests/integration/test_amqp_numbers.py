"""Metrics, lists and log lines of a node with AMQP clients, as an operator sees them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from tests.broker import HOST, Broker, free_ports, start_broker

WORKERS = 2
BODY = b"x" * 256


class Node:
    """A broker with two shards that says everything in its log."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        settings = {
            "server": {"amqp": {"tcp": {"addr": f"{HOST}:{self.port}"}}},
            "storage": {"wal_file_bytes": "16MiB", "min_free_bytes": 0},
            "log": {"level": "debug", "format": "json"},
        }
        self.broker: Broker = start_broker(folder, workers=WORKERS, settings=settings)
        self.connections: list[Any] = []

    def connect(self, name: str = "") -> Any:
        """A connection; the acceptor puts each next one on the shard with the fewest."""
        properties = {"connection_name": name} if name else None
        parameters = pika.ConnectionParameters(HOST, self.port, client_properties=properties)
        connection = pika.BlockingConnection(parameters)
        self.connections.append(connection)
        return connection

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all shards."""
        wanted = labels.items()
        samples = self.broker.metrics(name).items()
        return sum(value for key, value in samples if wanted <= dict(key).items())

    def rows(self, verb: str, *columns: str) -> list[dict[str, Any]]:
        """What `fluxmqctl` lists."""
        told = self.broker.control(verb, *columns, "--formatter=json", "--quiet")
        rows: list[dict[str, Any]] = json.loads(told)
        return rows

    def lines(self, message: str) -> list[dict[str, Any]]:
        """Lines of the log about AMQP that begin so."""
        lines = [json.loads(line) for line in self.broker.log().splitlines() if line[:1] == "{"]
        found = [line for line in lines if line["logger"] == "fluxmq.amqp"]
        return [line for line in found if line["message"].startswith(message)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A fresh node."""
    made = Node(tmp_path)
    yield made
    for connection in made.connections:
        if connection.is_open:
            connection.close()
    print(made.broker.log())
    made.broker.stop()


def test_messages_are_counted_by_what_became_of_them(node: Node) -> None:
    publisher, consumer = node.connect().channel(), node.connect().channel()
    limits = {"x-max-length": 8, "x-overflow": "reject-publish"}
    publisher.queue_declare("work", durable=True, arguments=limits)
    publisher.confirm_delivery()
    for _ in range(8):
        publisher.basic_publish("", "work", BODY)
    with pytest.raises(NackError):
        publisher.basic_publish("", "work", BODY)
    with pytest.raises(UnroutableError):
        publisher.basic_publish("", "nowhere", BODY, mandatory=True)
    publisher.basic_publish("", "nowhere", BODY)
    assert node.metric("fluxmq_amqp_published_total") == 11
    assert node.metric("fluxmq_amqp_published_bytes_total") == 11 * len(BODY)
    assert node.metric("fluxmq_amqp_confirms_total", answer="ack") == 10
    assert node.metric("fluxmq_amqp_confirms_total", answer="nack") == 1
    assert node.metric("fluxmq_amqp_returned_total") == 1
    assert node.metric("fluxmq_messages_dropped_total", reason="unroutable") == 1
    for _ in range(4):
        method, _, _ = consumer.basic_get("work")
    consumer.basic_ack(method.delivery_tag, multiple=True)
    method, _, _ = consumer.basic_get("work")
    consumer.basic_nack(method.delivery_tag, requeue=True)
    method, _, _ = consumer.basic_get("work")
    assert method.redelivered
    consumer.basic_reject(method.delivery_tag, requeue=False)
    consumer.tx_select()
    consumer.basic_publish("", "nowhere", BODY)
    consumer.tx_commit()
    consumer.tx_rollback()
    consumer.queue_purge("work")
    assert consumer.basic_get("work") == (None, None, None)
    assert node.metric("fluxmq_amqp_delivered_total") == 6
    assert node.metric("fluxmq_amqp_delivered_bytes_total") > 6 * len(BODY)
    assert node.metric("fluxmq_amqp_redelivered_total") == 1
    assert node.metric("fluxmq_amqp_gets_total", answer="message") == 6
    assert node.metric("fluxmq_amqp_gets_total", answer="empty") == 1
    assert node.metric("fluxmq_amqp_settled_total", verb="ack") == 4
    assert node.metric("fluxmq_amqp_settled_total", verb="requeue") == 1
    assert node.metric("fluxmq_amqp_settled_total", verb="reject") == 1
    assert node.metric("fluxmq_amqp_transactions_total", outcome="committed") == 1
    assert node.metric("fluxmq_amqp_transactions_total", outcome="rolled_back") == 1
    status = json.loads(node.broker.control("status", "--json"))
    assert status["totals"]["connections"] == 2
    assert status["totals"]["messages_received"] == 12
    assert status["totals"]["messages_sent"] == 6
