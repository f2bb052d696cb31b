"""What Spark's writers publish, on a real broker: kept once however often tasks and commits are run again. Without a session."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest

from tests.broker import CERTIFICATES, HOST, Broker, free_ports, start_broker

pytest.importorskip("pyspark", reason="the extra spark is not installed")

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import BinaryType, StringType, StructType

from fluxmq_spark.errors import SparkSourceError
from fluxmq_spark.outgoing import CHUNK_ROWS, CHUNK_ROWS_SPREAD
from fluxmq_spark.publishing import Address, Publisher, PublishError
from fluxmq_spark.stream_writer import stream_writer_of
from fluxmq_spark.writer import Published, writer_of

PAYLOAD = StructType().add("payload", BinaryType())
KEYED = StructType().add("payload", BinaryType()).add("routing_key", StringType())
DEADLINE = 20.0


class Node:
    """A broker that speaks AMQP, plain and encrypted, on ports that stay the same."""

    def __init__(self, folder: Path) -> None:
        self.port, self.tls_port = free_ports(2)
        self._folder = folder
        self.broker = self._start()

    def _start(self) -> Broker:
        tls = {
            "addr": f"{HOST}:{self.tls_port}",
            "cert_file": str(CERTIFICATES / "server.pem"),
            "key_file": str(CERTIFICATES / "server.key"),
        }
        settings = {
            "server": {"amqp": {"tcp": {"addr": f"{HOST}:{self.port}"}, "tls": tls}},
            "storage": {"wal_file_bytes": "16MiB", "min_free_bytes": 0},
        }
        return start_broker(self._folder, settings=settings)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}"

    def kill(self) -> None:
        """SIGKILL to every process of the node."""
        for pid in self.broker.pids().values():
            os.kill(pid, signal.SIGKILL)
        self.broker.stop(check=False)

    def restart(self) -> None:
        self.broker = self._start()

    def channel(self) -> Any:
        """A context manager: a connection of which the channel is taken."""
        return pika.BlockingConnection(
            pika.ConnectionParameters(HOST, self.port, blocked_connection_timeout=DEADLINE)
        )

    def declare(self, queue: str, arguments: Mapping[str, object] | None = None) -> None:
        with self.channel() as connection:
            connection.channel().queue_declare(queue, durable=True, arguments=arguments)

    def bodies(self, queue: str) -> list[bytes]:
        """All that is in a queue, which is taken out."""
        found = []
        with self.channel() as connection:
            channel = connection.channel()
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(got[2])
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A fresh node."""
    made = Node(tmp_path)
    yield made
    print(made.broker.log())
    made.broker.stop()


def rows(numbers: Iterable[int], **columns: Any) -> pa.RecordBatch:
    payload = pa.array([b"%d" % number for number in numbers], pa.binary())
    return pa.record_batch({"payload": payload, **columns})


def test_a_task_that_runs_again_after_its_broker_died_doubles_nothing(node: Node) -> None:
    node.declare("orders")
    writer = writer_of({"url": node.url, "queue": "orders"}, PAYLOAD, False)
    count = CHUNK_ROWS + 300

    def dying() -> Iterator[pa.RecordBatch]:
        """The first chunk is under way, and partly confirmed, when the broker goes."""
        yield rows(range(CHUNK_ROWS))
        node.kill()
        yield rows(range(CHUNK_ROWS, count))

    with pytest.raises(PublishError, match="the connection was lost"):
        writer.write(dying())
    node.restart()
    parts = [rows(range(5000)), rows(range(5000, count))]
    for _ in range(2):
        assert writer.write(iter(parts)) == Published(count)
    assert node.bodies("orders") == [b"%d" % number for number in range(count)]


def test_rows_that_come_in_another_order_are_not_taken_for_others(node: Node) -> None:
    node.declare("orders")
    writer = writer_of({"url": node.url, "queue": "orders"}, PAYLOAD, False)
    other = writer_of({"url": node.url, "queue": "orders"}, PAYLOAD, False)
    writer.write(iter([rows([1, 2, 3])]))
    writer.write(iter([rows([3, 2, 1])]))
    assert node.bodies("orders") == [b"1", b"2", b"3", b"3", b"2", b"1"], "at least once"
    other.write(iter([rows([1, 2, 3])]))
    assert node.bodies("orders") == [b"1", b"2", b"3"], "another job is another producer"


def test_queues_that_get_some_rows_each_know_them_all_again(node: Node) -> None:
    """Each has every second sequence only, which it remembers one by one."""
    for queue in ("even", "odd"):
        node.declare(queue)
    writer = writer_of({"url": node.url, "exchange": ""}, KEYED, False)
    count = 3 * CHUNK_ROWS_SPREAD
    keys = pa.array([("even", "odd")[number % 2] for number in range(count)])
    for _ in range(2):
        writer.write(iter([rows(range(count), routing_key=keys)]))
    assert node.bodies("even") == [b"%d" % number for number in range(0, count, 2)]
    assert node.bodies("odd") == [b"%d" % number for number in range(1, count, 2)]


def test_what_the_broker_does_not_take_is_told(node: Node) -> None:
    full = {"x-max-length": 2, "x-overflow": "reject-publish"}
    node.declare("full", full)
    cases: list[tuple[dict[str, str], str]] = [
        ({"queue": "none"}, "a message was returned: there is no queue 'none' (312 NO_ROUTE)"),
        (
            {"exchange": "amq.direct", "routingKey": "k"},
            "exchange 'amq.direct' leads messages with routing key 'k' to no queue (312",
        ),
        ({"exchange": "nope", "routingKey": "k"}, "404 NOT_FOUND - no exchange 'nope' in vhost"),
        ({"queue": "full"}, "the broker refused a message (basic.nack)"),
        ({"queue": "full", "url": node.url + "/other"}, "vhost other not found"),
        (
            {"queue": "full", "url": f"amqp://guest:s3cret@{HOST}:{node.port}"},
            "ACCESS_REFUSED - Login was refused",
        ),
    ]
    for options, text in cases:
        writer = writer_of({"url": node.url, **options}, PAYLOAD, False)
        with pytest.raises(PublishError) as raised:
            writer.write(iter([rows(range(10))]))
        assert text in str(raised.value)
        assert "s3cret" not in str(raised.value)
    assert len(node.bodies("full")) == 2


def test_a_broker_that_stops_answering_is_given_up(node: Node) -> None:
    node.declare("orders")
    pid = node.broker.pids()["shard 0"]
    with Publisher(Address.of(node.url), window=10, timeout=2) as publisher:
        os.kill(pid, signal.SIGSTOP)
        try:
            publisher.publish("", "orders", b"x", pika.BasicProperties())
            with pytest.raises(
                PublishError, match="messages were not confirmed: no answer for 2 s"
            ):
                publisher.finish()
        finally:
            os.kill(pid, signal.SIGCONT)


def test_encrypted_connections_check_the_broker(node: Node) -> None:
    node.declare("orders")
    url = f"amqps://guest:guest@{HOST}:{node.tls_port}"
    options = {"url": url, "queue": "orders", "window": "1"}
    ca_file = str(CERTIFICATES / "ca.pem")
    writer = writer_of({**options, "caFile": ca_file}, PAYLOAD, False)
    assert writer.write(iter([rows(range(10))])) == Published(10)
    assert len(node.bodies("orders")) == 10
    with pytest.raises(PublishError, match="CERTIFICATE_VERIFY_FAILED"):
        writer_of(options, PAYLOAD, False).write(iter([rows([1])]))


def test_a_micro_batch_whose_commit_failed_is_finished_once(node: Node, tmp_path: Path) -> None:
    """The first commit publishes half, then finds no queue; the second one comes with other rows and another writer."""
    for queue in ("a", "b"):
        node.declare(queue)
    options = {"url": node.url, "exchange": "", "checkpointLocation": str(tmp_path / "checkpoint")}
    keys = pa.array(["a"] * 100 + ["b"] * 99 + ["late"])
    writer = stream_writer_of(options, KEYED, False)
    staged = [writer.write(iter([rows(range(200), routing_key=keys)]))]
    with pytest.raises(PublishError, match="there is no queue 'late'"):
        stream_writer_of(options, KEYED, False).commit(staged, 4)
    writer.abort(staged, 4)
    node.declare("late")
    for again in range(2):
        writer = stream_writer_of(options, KEYED, False)
        staged = [writer.write(iter([rows([-again], routing_key=pa.array(["a"]))]))]
        writer.commit([*staged, None], 4)
    assert node.bodies("a") == [b"%d" % number for number in range(100)]
    assert node.bodies("b") == [b"%d" % number for number in range(100, 199)]
    assert node.bodies("late") == [b"199"]
    ledger = tmp_path / "checkpoint" / "fluxmq-staging"
    assert [each.name for each in ledger.iterdir()] == ["batch-4.done"]
    with pytest.raises(SparkSourceError, match=r"row 1 of the task: routing_key is null"):
        writer.write(iter([rows([1, 2], routing_key=pa.array(["a", None]))]))


def test_a_burst_of_one_name_is_one_message(node: Node) -> None:
    """Messages of equal properties that arrive together, before and after a restart."""
    node.declare("orders")
    named = pika.BasicProperties(headers={"x-deduplication-id": "p:7"}, delivery_mode=2)
    for first in (0, 100):
        with Publisher(Address.of(node.url), window=100, timeout=DEADLINE) as publisher:
            for number in range(first, first + 100):
                publisher.publish("", "orders", b"%03d" % number, named)
            publisher.finish()
            assert publisher.confirmed == 100
        node.kill()
        node.restart()
    assert node.bodies("orders") == [b"000"]
