"""Spans of messages that carry a trace context, from publishers of both protocols to a collector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest

from tests.broker import HOST, Broker, free_ports, running_broker
from tests.collector import Collector, collector
from tests.conformance import wire
from tests.conformance.client import Client, eventually
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V5

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OTHER = "0af7651916cd43dd8448eb211c80319c"
SPAN = "00f067aa0ba902b7"
STATE = "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"
CONSUMER, PRODUCER = 5, 4
"""Numbers of kinds of span."""


class Traced:
    """A broker with two shards that traces, its collector, and clients."""

    def __init__(self, broker: Broker, port: int, taken: Collector, stack: ExitStack) -> None:
        self.broker = broker
        self.taken = taken
        self.mqtt = Mqtt(broker, stack)
        self.amqp = pika.BlockingConnection(pika.ConnectionParameters(HOST, port))
        stack.callback(self.amqp.close)
        self.channel = self.amqp.channel()

    def subscriber(self, topic_filter: str) -> Client:
        client = self.mqtt.connect(V5)
        client.subscribe(topic_filter)
        return client

    def await_spans(self, trace: str, *names: str) -> None:
        eventually(lambda: set(names) <= set(self.taken.of(trace)), f"spans {names}")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    """One for all tests of this module."""
    (port,) = free_ports(1)
    with ExitStack() as stack:
        taken = stack.enter_context(collector())
        settings = {
            "server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}},
            "tracing": {
                "enabled": True,
                "endpoint": taken.endpoint,
                "service_name": "messages",
                "authorization": "Bearer of-tests",
            },
        }
        folder: Path = tmp_path_factory.mktemp("traced")
        broker = stack.enter_context(running_broker(folder, workers=2, settings=settings))
        yield Traced(broker, port, taken, stack)


def consume(node: Traced, queue: str) -> Any:
    """The next message's properties."""
    for _, properties, _ in node.channel.consume(queue, auto_ack=True, inactivity_timeout=10):
        node.channel.cancel()
        return properties
    return None


def test_an_mqtt_publish_and_its_deliveries(node: Traced) -> None:
    """All three stages have the publisher's span as parent, and both consumers get the context as it was."""
    node.channel.queue_declare("stored", durable=True)
    node.channel.queue_bind("stored", "amq.topic", "rooms.#")
    subscriber = node.subscriber("rooms/+")
    parent = f"00-{TRACE}-{SPAN}-01"
    publisher = node.mqtt.connect(V5, client_id="sensor")
    properties = [
        (wire.USER_PROPERTY, ("traceparent", parent)),
        (wire.USER_PROPERTY, ("tracestate", STATE)),
    ]
    assert publisher.publish("rooms/7", b"21.5", qos=1, props=properties) == 0
    delivered = subscriber.take(wire.PUBLISH)
    assert delivered.all(wire.USER_PROPERTY) == [
        ("traceparent", parent),
        ("tracestate", STATE),
    ]
    headers = consume(node, "stored").headers
    assert (headers["traceparent"], headers["tracestate"]) == (parent, STATE)

    node.await_spans(TRACE, "accept rooms/7", "commit stored", "deliver stored", "deliver rooms/7")
    found = node.taken.of(TRACE)
    assert {(span.parent, span.state, span.failed) for span in found.values()} == {
        (SPAN, STATE, False)
    }
    accept, commit = found["accept rooms/7"], found["commit stored"]
    assert accept.start <= accept.end <= commit.start < commit.end
    assert accept.kind == CONSUMER
    assert accept.attributes == {
        "messaging.system": "fluxmq",
        "messaging.operation.name": "accept",
        "messaging.operation.type": "receive",
        "messaging.destination.name": "rooms/7",
        "messaging.client.id": "sensor",
        "network.protocol.name": "mqtt",
    }
    deliver = found["deliver stored"]
    assert deliver.kind == PRODUCER
    assert deliver.start >= accept.end
    assert deliver.links == ((TRACE, SPAN),)
    assert deliver.attributes["network.protocol.name"] == "amqp"
    assert deliver.attributes["messaging.destination.subscription.name"] == "stored"
    assert found["deliver rooms/7"].attributes["network.protocol.name"] == "mqtt"
    assert accept.resource["service.name"] == "messages"
    assert node.taken.requests[-1]["authorization"] == "Bearer of-tests"


def test_an_amqp_publish_and_traces_that_are_not_sampled(node: Traced) -> None:
    """The second message's publisher does not sample: it keeps its context, and has no spans."""
    node.channel.queue_declare("orders", durable=True)
    node.channel.confirm_delivery()
    for trace, flags in ((OTHER, "00"), (TRACE[::-1], "01")):
        headers = {"traceparent": f"00-{trace}-{SPAN}-{flags}"}
        node.channel.basic_publish("", "orders", b"1", pika.BasicProperties(headers=headers))
        assert consume(node, "orders").headers == headers
    node.await_spans(TRACE[::-1], "accept orders", "commit orders", "deliver orders")
    assert node.taken.of(OTHER) == {}
    assert sum(node.broker.metrics("fluxmq_tracing_spans_total").values()) >= 3
