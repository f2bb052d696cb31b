"""kombu: the examples of its documentation over its AMQP transport (py-amqp)."""

from __future__ import annotations

import queue as queues
import socket
from collections.abc import Callable
from typing import Any

import kombu
import pytest
from amqp.exceptions import NotFound, PreconditionFailed
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.common import eventloop, maybe_declare
from kombu.mixins import ConsumerMixin
from kombu.pools import producers

from tests.interop.amqp091.conftest import Names
from tests.interop.amqp091.relay import Relay

DEADLINE_S = 15.0


def drain(connection: Connection, done: Callable[[], bool]) -> None:
    """Take what comes until something holds; waiting for a confirm may have taken it already."""
    while not done():
        connection.drain_events(timeout=DEADLINE_S)


def test_hello_with_the_simple_interface(url: str, name: Names) -> None:
    with Connection(url) as connection:
        simple = connection.SimpleQueue(name())
        simple.put({"hello": "world"}, serializer="json", compression="zlib")
        message = simple.get(block=True, timeout=DEADLINE_S)
        assert message.payload == {"hello": "world"}
        message.ack()
        with pytest.raises(queues.Empty):
            simple.get(block=False)
        simple.close()
        simple.queue(connection.channel()).delete()


def test_producer_and_consumer(url: str, name: Names) -> None:
    media = Exchange(name(), "direct", durable=True)
    video = Queue(name(), exchange=media, routing_key="video")
    found: list[Any] = []

    def process(body: Any, message: kombu.Message) -> None:
        found.append(body)
        message.ack()

    with Connection(url) as connection:
        producer = connection.Producer(serializer="json")
        sent = {"name": "/tmp/lolcat1.avi", "size": 1301013}
        producer.publish(sent, exchange=media, routing_key="video", declare=[video])
        with connection.Consumer(video, callbacks=[process], prefetch_count=10):
            connection.drain_events(timeout=DEADLINE_S)
        assert found == [sent]
        channel = connection.channel()
        video(channel).delete()
        media(channel).delete()


def test_reject_and_requeue(url: str, name: Names) -> None:
    tasks = Queue(name(), durable=True, queue_arguments={"x-queue-type": "quorum"})
    seen: list[tuple[Any, bool]] = []

    def process(body: Any, message: kombu.Message) -> None:
        seen.append((body, message.delivery_info["redelivered"]))
        if body == "again" and len(seen) == 1:
            message.requeue()
        elif body == "bad":
            message.reject()
        else:
            message.ack()

    with Connection(url, transport_options={"confirm_publish": True}) as connection:
        channel = connection.channel()
        bound = tasks(channel)
        bound.declare()
        producer = Producer(channel, routing_key=tasks.name)
        with Consumer(channel, bound, callbacks=[process]):
            producer.publish("again")
            drain(connection, lambda: len(seen) == 2)
            producer.publish("bad")
            drain(connection, lambda: len(seen) == 3)
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=0.3)
        assert seen == [("again", False), ("again", True), ("bad", False)]
        assert bound.queue_declare(passive=True).message_count == 0
        bound.delete()


class Worker(ConsumerMixin):
    """The worker of kombu's task queue example; stops after so many tasks."""

    def __init__(self, connection: Connection, task_queues: list[Queue], wanted: int) -> None:
        self.connection = connection
        self.task_queues = task_queues
        self.wanted = wanted
        self.done: list[Any] = []
        self.relay: Relay | None = None

    def get_consumers(self, Consumer: Any, channel: Any) -> list[Any]:  # noqa: N803 - kombu's
        return [Consumer(queues=self.task_queues, accept=["json"], callbacks=[self.process_task])]

    def process_task(self, body: Any, message: kombu.Message) -> None:
        self.done.append(body)
        message.ack()
        if len(self.done) >= self.wanted:
            self.should_stop = True
        elif self.relay is not None:
            self.relay.cut()
            self.relay = None


def test_the_task_queue_example(url: str, name: Names) -> None:
    exchange = Exchange(name(), type="direct")
    by_priority = [Queue(name(), exchange, routing_key=key) for key in ("high", "mid", "low")]
    with Connection(url) as connection:
        for key in ("low", "mid", "high"):
            with producers[connection].acquire(block=True) as producer:
                maybe_declare(exchange, producer.channel)
                for queue in by_priority:
                    maybe_declare(queue, producer.channel)
                producer.publish({"task": key}, exchange=exchange, routing_key=key, retry=True)
        worker = Worker(connection, by_priority, 3)
        worker.run(timeout=1)
        assert sorted(each["task"] for each in worker.done) == ["high", "low", "mid"]
        channel = connection.channel()
        for queue in by_priority:
            queue(channel).delete()
        exchange(channel).delete()


def test_a_worker_whose_connection_is_cut(url: str, relay: Relay, name: Names) -> None:
    tasks = Queue(name(), durable=True)
    with Connection(url) as connection, Connection(relay.url) as cut:
        producer = connection.Producer()
        for number in range(3):
            producer.publish({"n": number}, routing_key=tasks.name, declare=[tasks])
        worker = Worker(cut, [tasks], 3)
        worker.relay = relay
        worker.run(timeout=1)
        assert {each["n"] for each in worker.done} == {0, 1, 2}
        tasks(connection.channel()).delete()


def test_errors_have_their_classes(url: str, name: Names) -> None:
    with Connection(url) as connection:
        with pytest.raises(NotFound):
            Queue(name())(connection.channel()).queue_declare(passive=True)
        queue = Queue(name(), durable=True)
        queue(connection.channel()).declare()
        with pytest.raises(PreconditionFailed):
            Queue(queue.name, durable=True, max_length=5)(connection.channel()).declare()
        queue(connection.channel()).delete()


def test_publishing_with_retries_over_a_connection_that_was_cut(
    url: str, relay: Relay, name: Names
) -> None:
    tasks = Queue(name(), durable=True)
    with Connection(relay.url, transport_options={"confirm_publish": True}) as connection:
        producer = connection.Producer()
        producer.publish("1", routing_key=tasks.name, declare=[tasks])
        relay.cut()
        policy = {"interval_start": 0, "interval_step": 0.1, "max_retries": 20}
        producer.publish("2", routing_key=tasks.name, retry=True, retry_policy=policy)
    with Connection(url) as connection:
        bound = tasks(connection.channel())
        assert [bound.get(no_ack=True).payload for _ in range(2)] == ["1", "2"]
        bound.delete()


def test_priorities_and_times(url: str, name: Names) -> None:
    ranked = Queue(name(), max_priority=10)
    short = Queue(name(), message_ttl=0.05, expires=60.0)
    with Connection(url) as connection:
        producer = connection.Producer()
        for priority in (1, 9, 5):
            producer.publish(priority, routing_key=ranked.name, declare=[ranked], priority=priority)
        bound = ranked(connection.channel())
        assert [bound.get(no_ack=True).payload for _ in range(3)] == [9, 5, 1]
        producer.publish("old", routing_key=short.name, declare=[short])
        end = eventloop(connection, limit=1, timeout=0.3, ignore_timeouts=True)
        list(end)
        assert short(connection.channel()).get() is None
        bound.delete()
        short(connection.channel()).delete()


def test_a_heartbeat_keeps_a_silent_connection(url: str) -> None:
    with Connection(url, heartbeat=2) as connection:
        connection.connect()
        assert connection.connection.heartbeat == 2
        for _ in range(6):
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=0.5)
            connection.heartbeat_check()
        assert connection.connected
