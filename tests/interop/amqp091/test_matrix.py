"""Every way in, every way out, every outcome: acknowledging, refusing and giving back mean the same in both protocols.

Published by MQTT to a topic, by MQTT to the queue's address, by AMQP; taken by an AMQP consumer, by ``basic.get``, by an
MQTT consumer of the queue. Acknowledged, it is gone; given back, it comes again and says so; rejected, it is a dead
letter. The clients are pika and paho-mqtt.
"""

from __future__ import annotations

import queue as queues
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as paho
import pika  # type: ignore[import-untyped]
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from pika.adapters.blocking_connection import BlockingChannel  # type: ignore[import-untyped]

from tests.interop.amqp091.conftest import AmqpBroker, Names
from tests.interop.amqp091.test_pika_tutorials import channel

DEADLINE_S = 15.0
QUIET_S = 0.3
GROUP = "matrix"
BODY = b"through the matrix"

Taken = tuple[bytes, bool]
"""A body, and whether it had been delivered before."""


@pytest.fixture(autouse=True)
def fluxmq_alone(amqp: AmqpBroker) -> None:
    """Queues by MQTT are FluxMQ's own."""
    if amqp.name != "fluxmq":
        pytest.skip("RabbitMQ has no MQTT addresses for queues")


def user(*pairs: tuple[str, str], packet: int = PacketTypes.PUBLISH) -> Properties:
    """User properties of a packet."""
    properties = Properties(packet)
    properties.UserProperty = list(pairs)
    return properties


@contextmanager
def mqtt(
    broker: AmqpBroker, on_message: Callable[[Any], None] | None = None
) -> Iterator[paho.Client]:
    """A connected MQTT 5 client."""
    identifier = f"matrix-{uuid.uuid4().hex[:8]}"
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2,
        identifier,
        protocol=paho.MQTTv5,
        reconnect_on_failure=False,
    )
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    if on_message is not None:
        client.on_message = lambda _client, _data, message: on_message(message)
    client.connect(broker.host, broker.mqtt_port)
    client.loop_start()
    try:
        assert connected.wait(DEADLINE_S)
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


def mqtt_publish(broker: AmqpBroker, topic: str) -> None:
    """One message at QoS 1; returns when it is kept."""
    with mqtt(broker) as client:
        client.publish(topic, BODY, 1, properties=user(("kind", "mqtt"))).wait_for_publish(
            DEADLINE_S
        )


class AmqpTaker:
    """An AMQP consumer, or ``basic.get``."""

    def __init__(self, broker: AmqpBroker, queue: str, by_get: bool) -> None:
        self.queue, self.by_get = queue, by_get
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        self.channel = self.connection.channel()
        self.tag = 0
        if not by_get:
            self.deliveries = self.channel.consume(queue, inactivity_timeout=0.05)

    def take(self, seconds: float = DEADLINE_S) -> Taken | None:
        """The next message; None when none comes."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.by_get:
                method, _, body = self.channel.basic_get(self.queue)
            else:
                method, _, body = next(self.deliveries)
            if method is not None:
                self.tag = method.delivery_tag
                return body, method.redelivered
        return None

    def settle(self, outcome: str) -> None:
        """What becomes of the last."""
        if outcome == "ack":
            self.channel.basic_ack(self.tag)
        elif outcome == "nack":
            self.channel.basic_nack(self.tag, requeue=True)
        else:
            self.channel.basic_reject(self.tag, requeue=False)

    def close(self) -> None:
        self.connection.close()


class MqttTaker:
    """An MQTT consumer that settles by orders."""

    def __init__(self, broker: AmqpBroker, queue: str) -> None:
        self.queue = queue
        self.messages: queues.Queue[Any] = queues.Queue()
        self._context = mqtt(broker, self.messages.put)
        self.client = self._context.__enter__()
        granted: queues.Queue[Any] = queues.Queue()
        self.client.on_subscribe = lambda _c, _d, _m, reasons, _p: granted.put(reasons)
        wanted = user(
            ("consumer-group", GROUP), ("ack-mode", "explicit"), packet=PacketTypes.SUBSCRIBE
        )
        self.client.subscribe(f"$queue/{queue}", options=SubscribeOptions(qos=1), properties=wanted)
        [reason] = granted.get(timeout=DEADLINE_S)
        assert reason.value < 0x80, str(reason)
        self.said: dict[str, str] = {}

    def take(self, seconds: float = DEADLINE_S) -> Taken | None:
        """The next message; None when none comes."""
        try:
            message = self.messages.get(timeout=seconds)
        except queues.Empty:
            return None
        self.said = dict(message.properties.UserProperty)
        return message.payload, self.said["x-delivery-count"] != "0"

    def settle(self, outcome: str) -> None:
        """What becomes of the last; returns when that is on disk."""
        answers: queues.Queue[Any] = queues.Queue()
        self.client.on_publish = lambda _c, _d, _mid, reason, _p: answers.put(reason)
        named = [("message-id", self.said["message-id"]), ("group-id", self.said["group-id"])]
        named += [("delay", "0")] if outcome == "nack" else []
        self.client.publish(f"$queue/{self.queue}/${outcome}", b"", 1, properties=user(*named))
        assert answers.get(timeout=DEADLINE_S).value == 0

    def close(self) -> None:
        self._context.__exit__(None, None, None)


@pytest.fixture
def queue(amqp: AmqpBroker, name: Names) -> Iterator[str]:
    """A quorum queue whose dead letters go to another; bound to a topic of its own name."""
    own = name()
    with channel(amqp) as ch:
        ch.queue_declare(f"{own}.dead", durable=True)
        arguments = {
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"{own}.dead",
        }
        ch.queue_declare(own, durable=True, arguments=arguments)
        ch.queue_bind(own, "amq.topic", f"matrix.{own}")
        yield own
        ch.queue_delete(own)
        ch.queue_delete(f"{own}.dead")


def publish(broker: AmqpBroker, way: str, queue: str) -> None:
    """One message into the queue."""
    if way == "mqtt-topic":
        mqtt_publish(broker, f"matrix/{queue}")
    elif way == "mqtt-queue":
        mqtt_publish(broker, f"$queue/{queue}")
    else:
        with channel(broker) as ch:
            ch.confirm_delivery()
            sent = pika.BasicProperties(delivery_mode=2, headers={"kind": "amqp"})
            ch.basic_publish("", queue, BODY, sent, mandatory=True)


def dead_letter(ch: BlockingChannel, queue: str, seconds: float) -> Any:
    """The dead letter's properties; None when there is none."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        method, properties, body = ch.basic_get(f"{queue}.dead", auto_ack=True)
        if method is not None:
            assert body == BODY
            return properties
    return None


@pytest.mark.parametrize("outcome", ["ack", "nack", "reject"])
@pytest.mark.parametrize("way_out", ["amqp-consume", "amqp-get", "mqtt-queue"])
@pytest.mark.parametrize("way_in", ["mqtt-topic", "mqtt-queue", "amqp"])
def test_matrix(amqp: AmqpBroker, queue: str, way_in: str, way_out: str, outcome: str) -> None:
    publish(amqp, way_in, queue)
    taker: AmqpTaker | MqttTaker
    if way_out == "mqtt-queue":
        taker = MqttTaker(amqp, queue)
    else:
        taker = AmqpTaker(amqp, queue, by_get=way_out == "amqp-get")
    try:
        assert taker.take() == (BODY, False)
        taker.settle(outcome)
        if outcome == "nack":
            assert taker.take() == (BODY, True)
            taker.settle("ack")
        assert taker.take(QUIET_S) is None
    finally:
        taker.close()
    with channel(amqp) as ch:
        letter = dead_letter(ch, queue, DEADLINE_S if outcome == "reject" else QUIET_S)
        assert ch.basic_get(queue)[0] is None
    if outcome != "reject":
        assert letter is None
        return
    assert letter.headers["kind"] == way_in.partition("-")[0]
    [death] = letter.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (queue, "rejected", 1)


def test_amq_topic_is_the_space_of_topics(amqp: AmqpBroker, name: Names) -> None:
    """What AMQP publishes to amq.topic, MQTT subscribers hear, properties mapped; and back."""
    root = name()
    heard: queues.Queue[Any] = queues.Queue()
    with mqtt(amqp, heard.put) as client, channel(amqp) as ch:
        granted = threading.Event()
        client.on_subscribe = lambda *_: granted.set()
        client.subscribe(f"{root}/+/c", 1)
        assert granted.wait(DEADLINE_S)
        sent = pika.BasicProperties(
            content_type="text/plain", correlation_id="c", reply_to="back", headers={"a": "1"}
        )
        ch.basic_publish("amq.topic", f"{root}.b.c", BODY, sent)
        message = heard.get(timeout=DEADLINE_S)
        assert (message.topic, message.payload) == (f"{root}/b/c", BODY)
        assert message.properties.ContentType == "text/plain"
        assert message.properties.CorrelationData == b"c"
        assert message.properties.ResponseTopic == "back"
        assert ("a", "1") in message.properties.UserProperty

        own = ch.queue_declare("", exclusive=True).method.queue
        ch.queue_bind(own, "amq.topic", f"{root}.*.z")
        properties = user(("b", "2"))
        properties.ContentType, properties.CorrelationData = "text/html", b"d"
        client.publish(f"{root}/y/z", BODY, 1, properties=properties).wait_for_publish(DEADLINE_S)
        method, received, body = next(ch.consume(own, inactivity_timeout=DEADLINE_S))
        assert (method.exchange, method.routing_key, body) == ("amq.topic", f"{root}.y.z", BODY)
        assert (received.content_type, received.correlation_id) == ("text/html", "d")
        assert received.headers["b"] == "2"
