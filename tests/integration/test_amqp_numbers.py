"""Metrics, lists and log lines of a node with AMQP clients, as an operator sees them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError  # type: ignore[import-untyped]

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


def test_connections_channels_and_topology_are_counted(node: Node) -> None:
    channels = [node.connect().channel() for _ in range(WORKERS)]
    channels[0].exchange_declare("events", "topic")
    for number, channel in enumerate(channels):
        channel.queue_declare(f"q{number}", durable=number == 0)
        channel.queue_bind(f"q{number}", "events", "#")
        channel.basic_consume(f"q{number}", lambda *_: None)
    with pytest.raises(ChannelClosedByBroker):
        channels[0].connection.channel().queue_declare("nope", passive=True)
    assert node.metric("fluxmq_amqp_connections", state="running") == WORKERS
    assert node.metric("fluxmq_amqp_channels") == WORKERS
    assert node.metric("fluxmq_amqp_consumers") == WORKERS
    assert node.metric("fluxmq_amqp_connections_opened_total") == WORKERS
    assert node.metric("fluxmq_amqp_errors_total", code="404") == 1
    assert node.metric("fluxmq_amqp_methods_total", method="queue.bind") == WORKERS
    assert node.metric("fluxmq_topology_records", kind="queue") == WORKERS * WORKERS
    assert node.metric("fluxmq_topology_records", kind="binding") == WORKERS * WORKERS
    assert node.metric("fluxmq_topology_changes_waiting") == 0
    revisions = set(node.broker.metrics("fluxmq_topology_revision").values())
    assert len(revisions) == 1
    for connection in node.connections:
        connection.close()
    assert node.metric("fluxmq_amqp_connections_closed_total", reason="client") == WORKERS
    assert node.metric("fluxmq_amqp_connections") == 0


def test_lists_tell_what_there_is(node: Node) -> None:
    first, second = node.connect("first").channel(), node.connect("second").channel()
    first.queue_declare("single", durable=True, arguments={"x-single-active-consumer": True})
    first.queue_declare("passing")
    first.basic_qos(prefetch_count=7)
    first.basic_consume("single", lambda *_: None, consumer_tag="one")
    second.basic_consume("single", lambda *_: None, consumer_tag="two")
    second.basic_consume("passing", lambda *_: None, consumer_tag="plain", auto_ack=True)
    second.tx_select()
    for _ in range(3):
        second.basic_publish("", "nowhere", BODY)
    (channel,) = [
        row
        for row in node.rows("list_channels", "transactional", "messages_uncommitted", "number")
        if row["transactional"]
    ]
    assert channel["messages_uncommitted"] == 3
    columns = ("consumer_tag", "active", "activity_status", "prefetch_count", "ack_required")
    consumers = {row["consumer_tag"]: row for row in node.rows("list_consumers", *columns)}
    assert set(consumers) == {"one", "two", "plain"}
    plain = consumers["plain"]
    assert (plain["active"], plain["activity_status"]) == (True, "up")
    assert (plain["ack_required"], consumers["one"]["prefetch_count"]) == (False, 7)
    # Who is on another shard than the queue cannot tell.
    told = {tag: consumers[tag]["activity_status"] for tag in ("one", "two")}
    assert told["one"] in ("single_active", None, "")
    assert told["two"] in ("waiting", None, "")
    connections = node.rows("list_connections", "name", "state", "connected_at", "user", "protocol")
    assert {row["state"] for row in connections} == {"running"}
    assert {row["user"] for row in connections} == {"guest"}
    assert all(row["connected_at"] > 1_700_000_000_000 for row in connections)
    queues = {row["name"]: row for row in node.rows("list_queues", "name", "leader", "members")}
    assert all(row["members"] == [row["leader"]] for row in queues.values())


def test_the_log_tells_of_connections(node: Node) -> None:
    connection = node.connect()
    (line,) = node.lines("connection opened")
    assert (line["level"], line["user"], line["vhost"]) == ("debug", "guest", "/")
    connection.close()
    (line,) = node.lines("connection closed")
    assert (line["level"], line["message"]) == ("debug", "connection closed: client")
    with socket.create_connection((HOST, node.port)) as sock:
        sock.sendall(b"AMQP\x00\x00\x09\x01" + b"\x01\x00\x00\x00\x00\x00\x00\x00")
        while sock.recv(65_536):
            pass
    lines = node.lines("connection closed: ")
    assert [line["message"] for line in lines[1:]] == ["connection closed: handshake"]
