"""AMQP 0.9.1 over several shards: what is declared on one is there on all, and survives what it has to survive."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika  # type: ignore[import-untyped]
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker, UnroutableError  # type: ignore[import-untyped]

from tests.broker import HOST, Broker, free_ports, start_broker
from tests.conformance.client import eventually

WORKERS = 2
MESSAGES = 50
DEADLINE = 20.0


class Node:
    """A broker with two shards, and connections to each of them."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self._folder = folder
        self._open: list[Any] = []
        self.broker = self._start()

    def _start(self) -> Broker:
        settings = {
            "server": {"amqp": {"tcp": {"addr": f"{HOST}:{self.port}"}}},
            "storage": {"wal_file_bytes": "16MiB", "min_free_bytes": 0},
        }
        return start_broker(self._folder, workers=WORKERS, settings=settings)

    def restart(self) -> None:
        """Kill every process of the node at once, and start it again on the same data."""
        for pid in self.broker.pids().values():
            os.kill(pid, signal.SIGKILL)
        self.broker.stop(check=False)
        self.close()
        self.broker = self._start()

    def connect(self) -> Any:
        """A connection; the acceptor puts each next one on the shard with the fewest."""
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(HOST, self.port, blocked_connection_timeout=DEADLINE)
        )
        self._open.append(connection)
        return connection

    def channels(self) -> list[Any]:
        """A channel on each shard."""
        return [self.connect().channel() for _ in range(WORKERS)]

    def close(self) -> None:
        """Close what is still open."""
        for connection in self._open:
            with suppress(AMQPError):  # a shard that was killed took its connections along
                connection.close()
        self._open.clear()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A fresh node."""
    made = Node(tmp_path)
    yield made
    made.close()
    print(made.broker.log())
    made.broker.stop()


def refused(ask: Callable[[], object]) -> int:
    """The reply code with which a channel is closed."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        ask()
    return int(caught.value.reply_code)


def test_what_one_shard_declares_is_used_on_another_at_once(node: Node) -> None:
    here, there = node.channels()
    there.confirm_delivery()
    for number in range(20):
        name = f"q{number}"
        here.exchange_declare(f"x{number}", "topic", durable=number % 2 == 0)
        here.queue_declare(name, durable=number % 3 == 0)
        here.queue_bind(name, f"x{number}", "a.#")
        there.basic_publish(f"x{number}", "a.b", b"%d" % number, mandatory=True)
        method, _, body = here.basic_get(name, auto_ack=True)
        assert (method.exchange, body) == (f"x{number}", b"%d" % number)
        there.queue_delete(name)
        with pytest.raises(UnroutableError):
            there.basic_publish(f"x{number}", "a.b", b"", mandatory=True)
    assert refused(lambda: here.queue_declare("q0", passive=True)) == 404


def test_durable_things_and_messages_outlive_the_node(node: Node) -> None:
    here, there = node.channels()
    here.exchange_declare("lasting", "direct", durable=True)
    here.exchange_declare("passing", "direct")
    for name, durable in (("kept", True), ("other", True), ("gone", False)):
        here.queue_declare(name, durable=durable)
        here.queue_bind(name, "lasting", name)
    there.confirm_delivery()
    for number in range(MESSAGES):
        there.basic_publish("lasting", "kept", b"%d" % number)
    method, _, _ = here.basic_get("kept")
    assert method.delivery_tag == 1
    node.restart()
    here, there = node.channels()
    assert refused(lambda: here.exchange_declare("passing", passive=True)) == 404
    here = here.connection.channel()
    assert refused(lambda: here.queue_declare("gone", passive=True)) == 404
    got: list[tuple[int, bool]] = []
    for method, _, body in there.consume("kept", inactivity_timeout=DEADLINE):
        assert method is not None, f"{len(got)} of {MESSAGES} messages came"
        got.append((int(body), method.redelivered))
        there.basic_ack(method.delivery_tag)
        if len(got) == MESSAGES:
            break
    there.cancel()
    assert [number for number, _ in got] == list(range(MESSAGES))
    there.basic_publish("lasting", "other", b"again")
    assert there.basic_get("other", auto_ack=True)[2] == b"again"


def test_a_lost_shard_takes_only_what_was_its_own(node: Node) -> None:
    here, there = node.channels()
    mine = here.queue_declare("", exclusive=True).method.queue
    here.queue_declare("memory")
    here.queue_declare("disk", durable=True)
    assert refused(lambda: there.basic_consume(mine, print)) == 405
    there = there.connection.channel()
    shard = int(_shard_of(node, here))
    node.broker.kill_shard(shard)
    node.broker.wait_ready()

    def ended(name: str) -> bool:
        channel = there.connection.channel()
        try:
            channel.queue_declare(name, passive=True)
        except ChannelClosedByBroker as closed:
            return bool(closed.reply_code == 404)
        channel.close()
        return False

    eventually(lambda: ended(mine), f"{mine} is gone")
    eventually(lambda: ended("memory"), "the queue in memory is gone")
    there.confirm_delivery()
    there.basic_publish("", "disk", b"still", mandatory=True)
    assert there.basic_get("disk", auto_ack=True)[2] == b"still"
    there.queue_declare("memory", durable=True)


def _shard_of(node: Node, channel: Any) -> str:
    """The shard that a channel's connection is on, by what fluxmqctl lists of it."""
    local = channel.connection._impl._transport._sock.getsockname()[1]
    listed = node.broker.control("list_connections", "--formatter=json", "pid", "peer_port")
    (pid,) = [row["pid"] for row in json.loads(listed) if row["peer_port"] == local]
    return str(pid).partition(".")[0]


def test_a_queue_that_deletes_itself_is_declared_again_at_once(node: Node) -> None:
    """The end of the one before may still be on its way through the node."""
    here, there = node.channels()
    for number in range(50):
        channel = here.connection.channel()
        channel.queue_declare("passing", auto_delete=True)
        channel.queue_bind("passing", "amq.direct", "key")
        got: list[bytes] = []
        channel.basic_consume(
            "passing", lambda _c, _m, _p, body, got=got: got.append(body), auto_ack=True
        )
        there.basic_publish("amq.direct", "key", b"%d" % number)
        for _ in range(200):
            here.connection.process_data_events(0.1)
            if got:
                break
        assert got == [b"%d" % number]
        channel.close()


def test_replies_find_their_way_between_shards(node: Node) -> None:
    here, there = node.channels()
    here.queue_declare("service")

    def serve(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        answer = pika.BasicProperties(correlation_id=properties.correlation_id)
        channel.basic_publish("", properties.reply_to, body[::-1], answer)
        channel.basic_ack(method.delivery_tag)
        if body == b"last":
            channel.stop_consuming()

    here.basic_consume("service", serve)
    server = threading.Thread(target=here.start_consuming)
    server.start()
    got: list[tuple[str, bytes]] = []

    def received(_channel: Any, _method: Any, properties: Any, body: bytes) -> None:
        got.append((properties.correlation_id, body))

    there.basic_consume("amq.rabbitmq.reply-to", received, auto_ack=True)
    for number, text in enumerate((b"first", b"last")):
        question = pika.BasicProperties(
            reply_to="amq.rabbitmq.reply-to", correlation_id=str(number)
        )
        there.basic_publish("", "service", text, question)
    for _ in range(200):
        there.connection.process_data_events(0.1)
        if len(got) == 2:
            break
    server.join()
    assert got == [("0", b"tsrif"), ("1", b"tsal")]


def test_topics_of_mqtt_and_amq_topic_are_one(node: Node) -> None:
    here, there = node.channels()
    names = [channel.queue_declare("", exclusive=True).method.queue for channel in (here, there)]
    for channel, name in zip((here, there), names, strict=True):
        channel.queue_bind(name, "amq.topic", "home.*.light")
    got: list[tuple[str, bytes]] = []
    came, subscribed = threading.Event(), threading.Event()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)

    def on_message(_client: Any, _data: Any, message: Any) -> None:
        got.append((message.topic, message.payload))
        if message.payload == b"on":
            came.set()

    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect(HOST, node.broker.port)
    client.loop_start()
    client.subscribe("home/+/light", 1)
    assert subscribed.wait(DEADLINE)
    client.publish("home/hall/light", b"off", 1).wait_for_publish(DEADLINE)
    for channel, name in zip((here, there), names, strict=True):
        method, properties, body = channel.basic_get(name, auto_ack=True)
        assert properties.headers["protocol"] == "mqtt"
        assert (method.exchange, method.routing_key) == ("amq.topic", "home.hall.light")
        assert body == b"off"
    there.confirm_delivery()
    there.basic_publish("amq.topic", "home.attic.light", b"on", mandatory=True)
    assert came.wait(DEADLINE)
    assert got == [("home/hall/light", b"off"), ("home/attic/light", b"on")]
    assert here.basic_get(names[0], auto_ack=True)[2] == b"on"
    client.disconnect()
    client.loop_stop()


def test_a_message_comes_before_its_sync_and_its_confirmation_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUXMQ_SYNC_DELAY", "0.5")
    node = Node(tmp_path)
    try:
        here, there = node.channels()
        early = {"x-deliver-before-sync": True}
        for kind in ("quorum", "stream"):
            wanted = {"x-queue-type": kind, **early}
            assert refused(partial(here.queue_declare, "q", durable=True, arguments=wanted)) == 406
            here = here.connection.channel()
        here.queue_declare("q", durable=True, arguments=early)
        there.confirm_delivery()
        confirmed: list[bytes] = []

        def publish() -> None:
            for body in (b"1", b"2"):
                there.basic_publish("", "q", body)
                confirmed.append(body)

        came: list[tuple[bytes, list[bytes]]] = []

        def delivered(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            came.append((body, list(confirmed)))
            here.basic_ack(method.delivery_tag)
            if len(came) == 2:
                here.stop_consuming()

        here.basic_consume("q", delivered)
        here.connection.call_later(DEADLINE, here.stop_consuming)
        publisher = threading.Thread(target=publish)
        publisher.start()
        here.start_consuming()
        publisher.join(DEADLINE)
        assert came == [(b"1", []), (b"2", [b"1"])]
        assert confirmed == [b"1", b"2"]
        there.basic_publish("", "q", b"3")
        node.restart()
        again = node.connect().channel()
        bodies = [again.basic_get("q", auto_ack=True)[2] for _ in range(3)]
        assert b"3" in bodies, "it was confirmed"
    finally:
        node.close()
        node.broker.stop(check=False)
