"""A node that is short of memory: publishers stop at the mark, nothing that was confirmed is lost, and nobody is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker  # type: ignore[import-untyped]

from tests.broker import HOST
from tests.conformance.client import eventually
from tests.memory.node import DEADLINE, MIB, OVERSHOOT, Node

pytestmark = pytest.mark.slow

COUNT_MAX = 2_000
"""Messages of a mebibyte that a publisher sends at most until it is stopped: many times the room there is, for the node
looks at its memory ten times a second, and tells its shards one after another."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A fresh node."""
    made = Node(tmp_path)
    yield made
    print(made.broker.log())
    made.close()


@contextmanager
def running(work: threading.Thread) -> Iterator[threading.Thread]:
    """A thread that has to end before the block is left."""
    work.start()
    yield work
    work.join(DEADLINE)
    assert not work.is_alive()


def drain(channel: Any, queue: str, count: int) -> list[int]:
    """Take so many messages; the numbers that they begin with."""
    found: list[int] = []
    end = time.monotonic() + DEADLINE
    while len(found) < count:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            found.append(int.from_bytes(body[:4], "big"))
        assert time.monotonic() < end, f"{len(found)} of {count} came"
    return found


def test_amqp_publishers_are_blocked_until_consumers_have_made_room(node: Node) -> None:
    """Review finding 14: pika hears connection.blocked and connection.unblocked, and every confirmed message is there."""
    consumer = node.connect().channel()
    consumer.queue_declare("memory")
    node.set_mark()
    publisher = node.connect()
    heard: list[str] = []
    publisher.add_on_connection_blocked_callback(lambda _, frame: heard.append(frame.method.reason))
    publisher.add_on_connection_unblocked_callback(lambda *_: heard.append("unblocked"))
    confirmed: list[int] = []
    stopped, sent = threading.Event(), threading.Event()

    def publish() -> None:
        channel = publisher.channel()
        channel.confirm_delivery()
        # The publisher's shard may hear of the alarm later than the other one: until then it goes on.
        while not stopped.is_set() and len(confirmed) < COUNT_MAX:
            number = len(confirmed)
            channel.basic_publish("", "memory", number.to_bytes(4, "big") + bytes(MIB))
            confirmed.append(number)
        sent.set()
        end = time.monotonic() + DEADLINE
        while heard[-1:] != ["unblocked"] and time.monotonic() < end:
            publisher.process_data_events(0.1)

    with running(threading.Thread(target=publish)):
        eventually(lambda: node.alarm, "memory is short", DEADLINE)
        assert "alarm: memory is low" in node.broker.control("status")
        assert '"alarms": ["memory"]' in node.broker.http("/ready")[1]
        assert node.broker.ready(), "consumers are served"
        node.await_blocked()
        stopped.set()
        # Messages on their way when the publisher was stopped are confirmed once there is room.
        found = drain(consumer, "memory", len(confirmed))
        eventually(sent.is_set, "the publisher goes on", DEADLINE)
        found += drain(consumer, "memory", len(confirmed) - len(found))
    assert heard[:2] == ["low on memory", "unblocked"]
    assert len(confirmed) < COUNT_MAX
    assert found == confirmed == list(range(len(confirmed)))
    assert node.peak.bytes < node.mark + OVERSHOOT
    eventually(lambda: not node.alarm, "it is no longer", DEADLINE)
    log = node.broker.log()
    assert "alarm raised: memory is low" in log
    assert "alarm cleared: memory" in log


def test_mqtt_publishers_are_not_read_and_lose_nothing(node: Node) -> None:
    """Review finding 14: MQTT has no word for it: its publishers find their sockets full."""
    consumer = node.connect().channel()
    consumer.queue_declare("memory")
    consumer.queue_bind("memory", "amq.topic", "filled")
    node.set_mark()
    publisher = paho.Client(paho.CallbackAPIVersion.VERSION2, "publisher", protocol=paho.MQTTv5)
    ended: list[object] = []
    publisher.on_disconnect = lambda *told: ended.append(told[3])
    publisher.max_inflight_messages_set(20)
    publisher.connect(HOST, node.broker.port, keepalive=2)
    publisher.loop_start()
    sent: list[paho.MQTTMessageInfo] = []

    def publish() -> None:
        body = len(sent).to_bytes(4, "big") + bytes(MIB // 2)
        sent.append(publisher.publish("filled", body, qos=1))

    def stopped() -> bool:
        # The publisher's shard may hear of the alarm later than the other one.
        publish()
        return node.number("fluxmq_connections_blocked") == 1

    for _ in range(160):
        publish()
    eventually(lambda: node.alarm, "memory is short", DEADLINE)
    eventually(stopped, "the publisher is stopped", DEADLINE)
    publish()
    sent[-1].wait_for_publish(0.5)
    assert not sent[-1].is_published()
    assert drain(consumer, "memory", len(sent)) == list(range(len(sent)))
    for each in sent:
        each.wait_for_publish(DEADLINE)
    assert ended == [], "one connection all the time"
    publisher.disconnect()
    publisher.loop_stop()
    assert node.peak.bytes < node.mark + OVERSHOOT


def test_transactions_of_one_connection_have_a_bound_together(node: Node) -> None:
    """Review finding 14: 16 channels of 60 MiB uncommitted each took 1 GiB of a shard, and nobody was told."""
    before = node.peak.now()
    channels = [node.connect().channel()]
    connection = channels[0].connection
    channels += [connection.channel() for _ in range(15)]
    for channel in channels:
        channel.tx_select()
    channels[0].queue_declare("memory")
    for _ in range(60):
        for channel in [each for each in channels if each.is_open]:
            with suppress(AMQPError):
                channel.basic_publish("", "memory", bytes(MIB))
    peak = node.peak.bytes
    open_still = [each for each in channels if each.is_open]
    assert 0 < len(open_still) < 16
    for channel in open_still:
        with suppress(ChannelClosedByBroker):
            channel.tx_commit()
    errors = node.broker.metrics("fluxmq_amqp_errors_total")
    assert {dict(labels)["code"] for labels, count in errors.items() if count} == {"406"}
    assert "connection holds more than 134217728 bytes" in node.broker.log()
    assert peak - before < 128 * MIB + OVERSHOOT
    assert node.number("fluxmq_memory_refused_total") > 0
    print(f"held {before / MIB:.0f} MiB before, {peak / MIB:.0f} at most")


def test_transactions_of_stopped_publishers_do_not_hold_the_node_for_ever(node: Node) -> None:
    """Review finding 14: who is not read cannot commit; what is short is given back all the same."""
    connection = node.connect()
    heard: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _, frame: heard.append("blocked"))
    connection.add_on_connection_unblocked_callback(lambda *_: heard.append("unblocked"))
    channels = [connection.channel(), connection.channel()]
    channels[0].queue_declare("memory")
    for channel in channels:
        channel.tx_select()
    node.set_mark()

    def publish() -> None:
        with suppress(AMQPError):
            while True:
                for channel in channels:
                    channel.basic_publish("", "memory", bytes(4 * MIB))

    with running(threading.Thread(target=publish)):
        eventually(lambda: node.alarm, "memory is short", DEADLINE)
        eventually(lambda: not node.alarm, "it is no longer", DEADLINE)
    end = time.monotonic() + DEADLINE
    while heard[-1:] != ["unblocked"] and time.monotonic() < end:
        connection.process_data_events(0.1)
    assert heard[:2] == ["blocked", "unblocked"]
    assert node.peak.bytes < node.mark + OVERSHOOT
