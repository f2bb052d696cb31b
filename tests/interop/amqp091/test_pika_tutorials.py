"""RabbitMQ's six tutorials and its publisher confirms, written for pika, as their pages have them."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika  # type: ignore[import-untyped]
import pika.exceptions  # type: ignore[import-untyped]
import pytest
from pika.adapters.blocking_connection import BlockingChannel  # type: ignore[import-untyped]

from tests.interop.amqp091.conftest import AmqpBroker, Names

DEADLINE_S = 15.0


@contextmanager
def channel(broker: AmqpBroker) -> Iterator[BlockingChannel]:
    """A channel of a connection of its own."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def receive(
    taker: BlockingChannel, queue: str, count: int, ack: bool = False
) -> list[tuple[Any, Any, bytes]]:
    """So many deliveries, by ``basic_consume`` and ``start_consuming``."""
    found: list[tuple[Any, Any, bytes]] = []

    def callback(ch: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        found.append((method, properties, body))
        if ack:
            ch.basic_ack(delivery_tag=method.delivery_tag)
        if len(found) == count:
            ch.stop_consuming()

    taker.basic_consume(queue=queue, on_message_callback=callback, auto_ack=not ack)
    timer = taker.connection.call_later(DEADLINE_S, taker.stop_consuming)
    taker.start_consuming()
    taker.connection.remove_timeout(timer)
    assert len(found) == count
    return found


def await_count(looker: BlockingChannel, queue: str, count: int) -> None:
    """Wait until a queue holds so many messages: what one connection settles, another sees a moment later."""
    end = time.monotonic() + DEADLINE_S
    while (found := looker.queue_declare(queue, passive=True).method.message_count) != count:
        assert time.monotonic() < end, f"{queue} holds {found} messages"
        looker.connection.sleep(0.01)


def test_hello_world(amqp: AmqpBroker, name: Names) -> None:
    queue = name()
    with channel(amqp) as sender, channel(amqp) as receiver:
        sender.queue_declare(queue=queue)
        sender.basic_publish(exchange="", routing_key=queue, body="Hello World!")
        receiver.queue_declare(queue=queue)
        [(method, _, body)] = receive(receiver, queue, 1)
        assert (body, method.exchange, method.routing_key) == (b"Hello World!", "", queue)
        sender.queue_delete(queue)


def test_work_queues(amqp: AmqpBroker, name: Names) -> None:
    queue = name()
    with channel(amqp) as boss, channel(amqp) as first, channel(amqp) as second:
        boss.queue_declare(queue=queue, durable=True)
        for number in range(4):
            boss.basic_publish(
                exchange="",
                routing_key=queue,
                body=f"task {number}",
                properties=pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent),
            )
        first.basic_qos(prefetch_count=1)
        second.basic_qos(prefetch_count=1)
        # A worker that takes a task and dies: nobody's task is lost.
        _method, properties, body = next(first.consume(queue))
        assert body == b"task 0"
        assert properties.delivery_mode == 2
        first.connection.close()
        done = receive(second, queue, 4, ack=True)
        assert [body for _, _, body in done] == [b"task 0", b"task 1", b"task 2", b"task 3"]
        assert [method.redelivered for method, _, _ in done] == [True, False, False, False]
        await_count(boss, queue, 0)
        boss.queue_delete(queue)


def test_publish_and_subscribe(amqp: AmqpBroker, name: Names) -> None:
    exchange = name()
    with channel(amqp) as emitter, channel(amqp) as one, channel(amqp) as two:
        queues = []
        for listener in (one, two):
            listener.exchange_declare(exchange=exchange, exchange_type="fanout")
            queue = listener.queue_declare(queue="", exclusive=True).method.queue
            assert queue.startswith("amq.gen-")
            listener.queue_bind(exchange=exchange, queue=queue)
            queues.append(queue)
        emitter.exchange_declare(exchange=exchange, exchange_type="fanout")
        emitter.basic_publish(exchange=exchange, routing_key="", body="info: Hello World!")
        for listener, queue in zip((one, two), queues, strict=True):
            [(_, _, body)] = receive(listener, queue, 1)
            assert body == b"info: Hello World!"
        emitter.exchange_delete(exchange)


def test_routing(amqp: AmqpBroker, name: Names) -> None:
    exchange = name()
    with channel(amqp) as emitter, channel(amqp) as errors, channel(amqp) as everything:
        queues = []
        for listener, severities in (
            (errors, ["error"]),
            (everything, ["info", "warning", "error"]),
        ):
            listener.exchange_declare(exchange=exchange, exchange_type="direct")
            queue = listener.queue_declare(queue="", exclusive=True).method.queue
            for severity in severities:
                listener.queue_bind(exchange=exchange, queue=queue, routing_key=severity)
            queues.append(queue)
        for severity in ("info", "warning", "error", "debug"):
            emitter.basic_publish(exchange=exchange, routing_key=severity, body=severity)
        assert [body for _, _, body in receive(errors, queues[0], 1)] == [b"error"]
        found = receive(everything, queues[1], 3)
        assert [method.routing_key for method, _, _ in found] == ["info", "warning", "error"]
        emitter.exchange_delete(exchange)


def test_topics(amqp: AmqpBroker, name: Names) -> None:
    exchange = name()
    wanted = {"#": 4, "kern.*": 2, "*.critical": 2, "kern.*.deep": 1}
    with channel(amqp) as emitter:
        emitter.exchange_declare(exchange=exchange, exchange_type="topic")
        queues = {}
        for key in wanted:
            queues[key] = emitter.queue_declare(queue="", exclusive=True).method.queue
            emitter.queue_bind(exchange=exchange, queue=queues[key], routing_key=key)
        for key in ("kern.critical", "kern.info", "cron.critical", "kern.one.deep"):
            emitter.basic_publish(exchange=exchange, routing_key=key, body=key)
        for key, count in wanted.items():
            receive(emitter, queues[key], count)
            assert emitter.basic_get(queues[key])[0] is None, key
        emitter.exchange_delete(exchange)


def fibonacci(number: int) -> int:
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


class FibonacciRpcClient:
    """The tutorial's client."""

    def __init__(self, broker: AmqpBroker, server_queue: str) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        self.channel = self.connection.channel()
        self.server_queue = server_queue
        self.callback_queue = self.channel.queue_declare(queue="", exclusive=True).method.queue
        self.channel.basic_consume(
            queue=self.callback_queue, on_message_callback=self.on_response, auto_ack=True
        )
        self.response: bytes | None = None
        self.correlation_id = ""

    def on_response(self, ch: Any, method: Any, properties: Any, body: bytes) -> None:
        if self.correlation_id == properties.correlation_id:
            self.response = body

    def call(self, number: int) -> int:
        self.response = None
        self.correlation_id = str(uuid.uuid4())
        self.channel.basic_publish(
            exchange="",
            routing_key=self.server_queue,
            properties=pika.BasicProperties(
                reply_to=self.callback_queue, correlation_id=self.correlation_id
            ),
            body=str(number),
        )
        self.connection.process_data_events(time_limit=DEADLINE_S)
        assert self.response is not None
        return int(self.response)


def test_remote_procedure_call(amqp: AmqpBroker, name: Names) -> None:
    queue = name()
    ready = threading.Event()

    def serve() -> None:
        with channel(amqp) as server:
            server.queue_declare(queue=queue)
            server.basic_qos(prefetch_count=1)
            for method, properties, body in server.consume(queue, inactivity_timeout=0.05):
                ready.set()
                if method is None:
                    continue
                if body == b"stop":
                    server.basic_ack(method.delivery_tag)
                    return
                server.basic_publish(
                    exchange="",
                    routing_key=properties.reply_to,
                    properties=pika.BasicProperties(correlation_id=properties.correlation_id),
                    body=str(fibonacci(int(body))),
                )
                server.basic_ack(delivery_tag=method.delivery_tag)

    server = threading.Thread(target=serve)
    server.start()
    assert ready.wait(DEADLINE_S)
    client = FibonacciRpcClient(amqp, queue)
    assert [client.call(number) for number in (1, 10, 15)] == [1, 55, 610]
    client.channel.basic_publish(exchange="", routing_key=queue, body="stop")
    server.join(DEADLINE_S)
    assert not server.is_alive()
    client.channel.queue_delete(queue)
    client.connection.close()


def test_publisher_confirms(amqp: AmqpBroker, name: Names) -> None:
    queue = name()
    with channel(amqp) as publisher:
        publisher.queue_declare(queue=queue, durable=True, arguments={"x-queue-type": "quorum"})
        publisher.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=2)
        for number in range(50):
            publisher.basic_publish("", queue, f"{number}", persistent, mandatory=True)
        declared = publisher.queue_declare(queue, passive=True)
        assert declared.method.message_count == 50
        with pytest.raises(pika.exceptions.UnroutableError) as caught:
            publisher.basic_publish("", name(), "nowhere", mandatory=True)
        [returned] = caught.value.messages
        assert (returned.body, returned.method.reply_code) == (b"nowhere", 312)
        publisher.queue_delete(queue)


def test_publisher_confirms_of_a_full_queue(amqp: AmqpBroker, name: Names) -> None:
    queue = name()
    with channel(amqp) as publisher:
        limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
        publisher.queue_declare(queue=queue, arguments=limits)
        publisher.confirm_delivery()
        publisher.basic_publish("", queue, "fits")
        with pytest.raises(pika.exceptions.NackError):
            publisher.basic_publish("", queue, "does not")
        publisher.queue_delete(queue)
