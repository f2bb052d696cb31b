"""Three protocols by three: what is published by one and consumed by another has the same outcomes, counts and reasons.

The clients are Paho (MQTT 5), pika (AMQP 0.9.1) and Qpid Proton (AMQP 1.0). Each test ends with one more message that is
consumed and rejected: what had wrongly been requeued or dead-lettered before it would come before it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest

from tests.interop.amqp091.conftest import Names
from tests.interop.amqp10.conftest import AmqpBroker
from tests.interop.protocol_clients import (
    CLIENTS,
    DELAYING,
    Got,
    ProtocolClient,
    Sent,
    connected,
    relayed,
)

DELAY_MS = 150
EACH = list(CLIENTS)
AMQP = ["amqp091", "amqp10"]
FIRST, LAST = b"first", b"last"


@pytest.fixture(scope="module")
def channel(amqp: AmqpBroker) -> Iterator[Any]:
    """A channel of AMQP 0.9.1, which declares."""
    parameters = pika.URLParameters(amqp.url)
    parameters.heartbeat = 0
    connection = pika.BlockingConnection(parameters)
    made = connection.channel()
    made.exchange_declare(
        DELAYING, "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
    )
    yield made
    made.exchange_delete(DELAYING)
    connection.close()


def declare(channel: Any, queue: str, arguments: dict[str, Any]) -> None:
    """Declare a queue, whose dead letters go to one queue for each protocol that may read them."""
    dead = f"{queue}.dead"
    channel.exchange_declare(dead, "fanout", durable=True)
    for protocol in EACH:
        channel.queue_declare(f"{dead}.{protocol}", durable=True)
        channel.queue_bind(f"{dead}.{protocol}", dead)
    channel.queue_declare(
        queue, durable=True, arguments={"x-dead-letter-exchange": dead, **arguments}
    )


def letters(broker: AmqpBroker, queue: str, reader: str, count: int) -> list[Got]:
    """The dead letters of a queue, as a protocol reads them."""
    with connected(broker, reader) as client:
        client.consume(f"{queue}.dead.{reader}")
        found = []
        for _ in range(count):
            found.append(client.receive())
            client.ack()
        return found


def end(client: ProtocolClient, publisher: ProtocolClient, queue: str) -> None:
    """Publish the last message and reject it; nothing else comes before it."""
    publisher.publish(queue, Sent(LAST))
    assert client.receive() == Got(LAST)
    client.reject()


@pytest.mark.parametrize("way_in", EACH)
@pytest.mark.parametrize("way_out", EACH)
@pytest.mark.parametrize("outcome", ["ack", "requeue", "reject", "delivery_limit"])
def test_outcomes(
    amqp: AmqpBroker, channel: Any, name: Names, way_in: str, way_out: str, outcome: str
) -> None:
    queue = name()
    declare(channel, queue, {"x-queue-type": "quorum", "x-delivery-limit": 1})
    with connected(amqp, way_in) as publisher, connected(amqp, way_out) as client:
        client.consume(queue)
        publisher.publish(queue, Sent(FIRST))
        assert client.receive() == Got(FIRST)
        if outcome in {"requeue", "delivery_limit"}:
            client.requeue()
            assert client.receive() == Got(FIRST, before=1)
        if outcome == "delivery_limit":
            client.requeue()
        elif outcome == "reject":
            client.reject()
        else:
            client.ack()
        end(client, publisher, queue)
    reasons = {"reject": ["rejected"], "delivery_limit": ["delivery_limit"]}.get(outcome, [])
    expected = [Got(FIRST, 0, (queue, each)) for each in reasons]
    expected.append(Got(LAST, 0, (queue, "rejected")))
    assert letters(amqp, queue, way_in, len(expected)) == expected


@pytest.mark.parametrize("way_in", EACH)
@pytest.mark.parametrize("way_out", EACH)
def test_a_consumer_is_cut_off(
    amqp: AmqpBroker, channel: Any, name: Names, way_in: str, way_out: str
) -> None:
    queue = name()
    declare(channel, queue, {"x-queue-type": "quorum"})
    unsettled = [b"second", b"third"]
    with connected(amqp, way_in) as publisher, relayed(amqp) as (far, *relays):
        for body in (FIRST, *unsettled):
            publisher.publish(queue, Sent(body))
        with connected(far, way_out) as first:
            first.consume(queue)
            assert first.receive() == Got(FIRST)
            first.ack()
            assert [first.receive() for _ in unsettled] == [Got(body) for body in unsettled]
            with connected(amqp, way_out) as second:
                second.consume(queue)
                assert sum(each.cut() for each in relays) == 1
                first.notice_loss()
                for body in unsettled:
                    assert second.receive() == Got(body, before=1)
                    second.ack()
                end(second, publisher, queue)
    assert letters(amqp, queue, way_in, 1) == [Got(LAST, 0, (queue, "rejected"))]


@pytest.mark.parametrize("way_in", EACH)
def test_messages_that_nobody_consumed(
    amqp: AmqpBroker, channel: Any, name: Names, way_in: str
) -> None:
    expiring, full = name(), name()
    declare(channel, expiring, {"x-queue-type": "quorum"})
    declare(channel, full, {"x-max-length": 1})
    with connected(amqp, way_in) as publisher:
        publisher.publish(expiring, Sent(FIRST, ttl_ms=1000 if way_in == "mqtt5" else 100))
        for body in (FIRST, LAST):
            publisher.publish(full, Sent(body))
    for reader in EACH:
        assert letters(amqp, full, reader, 1) == [Got(FIRST, 0, (full, "maxlen"))]
        assert letters(amqp, expiring, reader, 1) == [Got(FIRST, 0, (expiring, "expired"))]
    assert channel.queue_declare(full, passive=True).method.message_count == 1
    assert channel.queue_declare(expiring, passive=True).method.message_count == 0


@pytest.mark.parametrize("way_in", AMQP)
@pytest.mark.parametrize("way_out", EACH)
def test_priorities(amqp: AmqpBroker, channel: Any, name: Names, way_in: str, way_out: str) -> None:
    """MQTT says none, which is the lowest."""
    queue = name()
    declare(channel, queue, {"x-max-priority": 9})
    with connected(amqp, "mqtt5") as mqtt, connected(amqp, way_in) as publisher:
        mqtt.publish(queue, Sent(b"none"))
        publisher.publish(queue, Sent(b"low", priority=3))
        publisher.publish(queue, Sent(b"high", priority=7))
    with connected(amqp, way_out) as client:
        client.consume(queue)
        assert [client.receive().body for _ in range(3)] == [b"high", b"low", b"none"]


@pytest.mark.parametrize("way_in", EACH)
@pytest.mark.parametrize("way_out", EACH)
def test_delays(amqp: AmqpBroker, channel: Any, name: Names, way_in: str, way_out: str) -> None:
    queue = name()
    declare(channel, queue, {"x-queue-type": "quorum"})
    channel.queue_bind(queue, DELAYING, queue)
    with connected(amqp, way_in) as publisher, connected(amqp, way_out) as client:
        client.consume(queue)
        begun = time.monotonic()
        publisher.publish(queue, Sent(FIRST, delay_ms=DELAY_MS))
        assert client.receive() == Got(FIRST)
        # Steady time may be a twentieth faster than this clock.
        assert time.monotonic() - begun > 0.9 * DELAY_MS / 1000
        client.ack()
        end(client, publisher, queue)
