"""pika beyond the tutorials: errors, cancellations, transactions, the asynchronous examples of its documentation."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pika  # type: ignore[import-untyped]
import pika.exceptions  # type: ignore[import-untyped]
import pytest
from pika.exchange_type import ExchangeType  # type: ignore[import-untyped]

from tests.interop.amqp091.conftest import AmqpBroker, Names
from tests.interop.amqp091.relay import Relay
from tests.interop.amqp091.test_pika_tutorials import DEADLINE_S, channel


def test_errors_close_the_channel_alone(amqp: AmqpBroker, name: Names) -> None:
    with channel(amqp) as first:
        second = first.connection.channel()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            first.queue_declare(name(), passive=True)
        assert caught.value.reply_code == 404
        assert second.queue_declare("", exclusive=True).method.message_count == 0


def test_wrong_credentials_are_told(amqp: AmqpBroker) -> None:
    wrong = pika.ConnectionParameters(
        amqp.host, amqp.port, credentials=pika.PlainCredentials("guest", "wrong")
    )
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(wrong)
    nowhere = pika.ConnectionParameters(amqp.host, amqp.port, virtual_host="nowhere")
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(nowhere)


def test_a_deleted_queue_cancels_its_consumer(amqp: AmqpBroker, name: Names) -> None:
    queue = name()
    with channel(amqp) as consumer, channel(amqp) as other:
        consumer.queue_declare(queue)
        cancelled: list[str] = []
        consumer.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        tag = consumer.basic_consume(queue, lambda *delivery: None)
        other.queue_delete(queue)
        consumer.start_consuming()
        assert cancelled == [tag]


def test_get_and_settle(amqp: AmqpBroker, name: Names) -> None:
    queue = name()
    with channel(amqp) as ch:
        ch.queue_declare(queue)
        for body in ("a", "b", "c"):
            ch.basic_publish("", queue, body)
        _first, _, _ = ch.basic_get(queue)
        second, _, _ = ch.basic_get(queue)
        ch.basic_nack(second.delivery_tag, multiple=True, requeue=True)
        again = [ch.basic_get(queue) for _ in range(3)]
        assert [body for _, _, body in again] == [b"a", b"b", b"c"]
        assert [method.redelivered for method, _, _ in again] == [True, True, False]
        ch.basic_reject(again[0][0].delivery_tag, requeue=False)
        ch.basic_ack(again[2][0].delivery_tag, multiple=True)
        assert ch.basic_get(queue) == (None, None, None)
        ch.queue_delete(queue)


def test_transactions(amqp: AmqpBroker, name: Names) -> None:
    queue = name()
    with channel(amqp) as ch:
        ch.queue_declare(queue, durable=True)
        ch.tx_select()
        ch.basic_publish("", queue, "kept")
        ch.tx_commit()
        ch.basic_publish("", queue, "dropped")
        ch.tx_rollback()
        ch.tx_commit()
        assert ch.queue_declare(queue, durable=True).method.message_count == 1
        ch.queue_delete(queue)


def test_headers_come_as_they_went(amqp: AmqpBroker, name: Names) -> None:
    queue = name()
    headers = {
        "text": "ü",
        "number": 7,
        "large": 2**40,
        "list": [1, "x"],
        "inner": {"a": True},
        "none": None,
    }
    sent = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
    )
    with channel(amqp) as ch:
        ch.queue_declare(queue)
        ch.basic_publish("", queue, b"{}", sent)
        _, properties, body = ch.basic_get(queue, auto_ack=True)
        assert body == b"{}"
        assert properties == sent
        ch.queue_delete(queue)


def test_large_messages(amqp: AmqpBroker, name: Names) -> None:
    queue = name()
    with channel(amqp) as ch:
        ch.queue_declare(queue)
        for size in (0, 1, 131_063, 131_064, 131_065, 1_000_000):
            ch.basic_publish("", queue, b"x" * size)
            assert len(ch.basic_get(queue, auto_ack=True)[2]) == size
        ch.queue_delete(queue)


def test_direct_reply_to(amqp: AmqpBroker, name: Names) -> None:
    queue = name()
    with channel(amqp) as client, channel(amqp) as server:
        server.queue_declare(queue)
        answers: list[bytes] = []
        client.basic_consume(
            "amq.rabbitmq.reply-to", lambda ch, m, p, body: answers.append(body), auto_ack=True
        )
        client.basic_publish(
            "", queue, "Marco", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
        )
        method, properties, body = next(server.consume(queue, inactivity_timeout=DEADLINE_S))
        assert body == b"Marco"
        server.basic_publish("", properties.reply_to, "Polo")
        server.basic_ack(method.delivery_tag)
        client.connection.process_data_events(time_limit=DEADLINE_S)
        assert answers == [b"Polo"]
        server.queue_delete(queue)


class ExampleConsumer:
    """pika's asynchronous consumer example, stopped after so many messages; ``should_reconnect`` as there."""

    def __init__(
        self, url: str, exchange: str, queue: str, wanted: int, taken: list[bytes]
    ) -> None:
        self.url, self.exchange, self.queue = url, exchange, queue
        self.wanted, self.taken = wanted, taken
        self.should_reconnect = False
        self.consuming = threading.Event()
        self.connection: Any = None
        self.channel: Any = None
        self.tag = ""

    def run(self) -> None:
        self.connection = pika.SelectConnection(
            parameters=pika.URLParameters(self.url),
            on_open_callback=lambda connection: connection.channel(
                on_open_callback=self.on_channel
            ),
            on_open_error_callback=self.on_lost,
            on_close_callback=self.on_lost,
        )
        self.connection.ioloop.start()

    def on_lost(self, connection: Any, reason: BaseException) -> None:
        self.should_reconnect = len(self.taken) < self.wanted
        connection.ioloop.stop()

    def on_channel(self, channel: Any) -> None:
        self.channel = channel
        channel.exchange_declare(
            self.exchange, ExchangeType.topic, callback=lambda frame: self.on_exchange()
        )

    def on_exchange(self) -> None:
        self.channel.queue_declare(queue=self.queue, callback=lambda frame: self.on_queue())

    def on_queue(self) -> None:
        callback = functools.partial(self.channel.basic_qos, prefetch_count=1)
        self.channel.queue_bind(
            self.queue,
            self.exchange,
            routing_key="example.text",
            callback=lambda frame: callback(callback=lambda frame: self.on_qos()),
        )

    def on_qos(self) -> None:
        self.channel.add_on_cancel_callback(lambda frame: self.channel.close())
        self.tag = self.channel.basic_consume(
            self.queue, self.on_message, callback=lambda frame: self.consuming.set()
        )

    def on_message(self, channel: Any, deliver: Any, properties: Any, body: bytes) -> None:
        self.taken.append(body)
        channel.basic_ack(deliver.delivery_tag)
        if len(self.taken) == self.wanted:
            channel.basic_cancel(self.tag, callback=lambda frame: self.connection.close())


def test_a_consumer_that_reconnects(amqp: AmqpBroker, relay: Relay, name: Names) -> None:
    exchange, queue = name(), name()
    taken: list[bytes] = []
    current: list[ExampleConsumer] = []
    started = threading.Semaphore(0)

    def run() -> None:
        while True:
            consumer = ExampleConsumer(relay.url, exchange, queue, 4, taken)
            current.append(consumer)
            started.release()
            consumer.run()
            if not consumer.should_reconnect:
                return

    thread = threading.Thread(target=run)
    thread.start()
    with channel(amqp) as publisher:
        for number in range(4):
            if number % 2 == 0:
                assert started.acquire(timeout=DEADLINE_S)
                assert current[-1].consuming.wait(DEADLINE_S)
            publisher.basic_publish(exchange, "example.text", f"{number}")
            if number == 1:
                publisher.connection.sleep(0.2)
                assert relay.cut() >= 1
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        assert list(dict.fromkeys(taken)) == [b"0", b"1", b"2", b"3"]
        assert len(current) == 2
        publisher.queue_delete(queue)
        publisher.exchange_delete(exchange)


class ExamplePublisher:
    """pika's asynchronous publisher example: confirms counted as they come, several at once or each."""

    def __init__(self, url: str, queue: str, count: int) -> None:
        self.url, self.queue, self.count = url, queue, count
        self.open: set[int] = set()
        self.acked = self.nacked = 0
        self.connection: Any = None

    def run(self) -> None:
        self.connection = pika.SelectConnection(
            parameters=pika.URLParameters(self.url),
            on_open_callback=lambda connection: connection.channel(
                on_open_callback=self.on_channel
            ),
            on_close_callback=lambda connection, reason: connection.ioloop.stop(),
        )
        self.connection.ioloop.call_later(DEADLINE_S, self.connection.ioloop.stop)
        self.connection.ioloop.start()

    def on_channel(self, channel: Any) -> None:
        channel.confirm_delivery(self.on_confirm)
        channel.queue_declare(
            self.queue, durable=True, callback=lambda frame: self.publish(channel)
        )

    def publish(self, channel: Any) -> None:
        properties = pika.BasicProperties(app_id="example", content_type="application/json")
        for number in range(1, self.count + 1):
            self.open.add(number)
            channel.basic_publish("", self.queue, f"{number}", properties)

    def on_confirm(self, frame: Any) -> None:
        tag, multiple = frame.method.delivery_tag, frame.method.multiple
        settled = {number for number in self.open if number == tag or (multiple and number <= tag)}
        self.open -= settled
        if frame.method.NAME.endswith("Ack"):
            self.acked += len(settled)
        else:
            self.nacked += len(settled)
        if not self.open:
            self.connection.close()


def test_an_asynchronous_publisher(amqp: AmqpBroker, name: Names) -> None:
    publisher = ExamplePublisher(amqp.url, name(), 500)
    publisher.run()
    assert (publisher.acked, publisher.nacked, publisher.open) == (500, 0, set())
    with channel(amqp) as ch:
        assert ch.queue_delete(publisher.queue).method.message_count == 500
