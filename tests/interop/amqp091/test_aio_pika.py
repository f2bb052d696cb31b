"""aio-pika: the examples of its documentation, the robust connection, its patterns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import ChannelPreconditionFailed, DeliveryError, QueueEmpty
from aio_pika.patterns import RPC, Master, NackMessage, RejectMessage

from tests.interop.amqp091.conftest import Names
from tests.interop.amqp091.relay import Relay

DEADLINE_S = 15.0


def run(example: Callable[[], Awaitable[None]]) -> None:
    """One example, for a bounded time."""
    asyncio.run(asyncio.wait_for(_awaited(example), 3 * DEADLINE_S))


async def _awaited(example: Callable[[], Awaitable[None]]) -> None:
    await example()


def test_simple_publisher_and_consumer(url: str, name: Names) -> None:
    async def example() -> None:
        connection = await aio_pika.connect_robust(url)
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=10)
            queue = await channel.declare_queue(name(), auto_delete=True)
            body = b"Hello from aio-pika"
            sent = Message(body, content_type="text/plain", headers={"foo": "bar", "n": 5})
            await channel.default_exchange.publish(sent, routing_key=queue.name)
            async with queue.iterator(timeout=DEADLINE_S) as iterator:
                async for message in iterator:
                    async with message.process():
                        assert message.body == body
                        assert message.headers == {"foo": "bar", "n": 5}
                        assert message.content_type == "text/plain"
                        break

    run(example)


def test_get(url: str, name: Names) -> None:
    async def example() -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange(name(), auto_delete=True)
            queue = await channel.declare_queue(name(), auto_delete=True)
            await queue.bind(exchange, "key")
            await exchange.publish(Message(b"Hello", content_type="text/plain"), "key")
            message = await queue.get(timeout=DEADLINE_S)
            assert message is not None
            await message.ack()
            with pytest.raises(QueueEmpty):
                await queue.get(timeout=DEADLINE_S)
            assert await queue.get(fail=False) is None
            await queue.unbind(exchange, "key")
            await queue.delete()

    run(example)


def test_tasks_with_prefetch_and_quorum(url: str, name: Names) -> None:
    async def example() -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=1)
            arguments: dict[str, Any] = {"x-queue-type": "quorum"}
            queue = await channel.declare_queue(name(), durable=True, arguments=arguments)
            for number in range(10):
                task = Message(f"{number}".encode(), delivery_mode=DeliveryMode.PERSISTENT)
                await channel.default_exchange.publish(task, routing_key=queue.name)
            found: list[bytes] = []
            done = asyncio.Event()

            async def on_message(message: AbstractIncomingMessage) -> None:
                async with message.process():
                    found.append(message.body)
                    if len(found) == 10:
                        done.set()

            await queue.consume(on_message)
            await asyncio.wait_for(done.wait(), DEADLINE_S)
            assert found == [b"%d" % number for number in range(10)]
            await queue.delete(if_unused=False, if_empty=False)

    run(example)


def test_exchanges(url: str, name: Names) -> None:
    async def example() -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(on_return_raises=True)
            queue = await channel.declare_queue(exclusive=True)
            logs = await channel.declare_exchange(name(), ExchangeType.FANOUT)
            topics = await channel.declare_exchange(name(), ExchangeType.TOPIC)
            headers = await channel.declare_exchange(name(), ExchangeType.HEADERS)
            await queue.bind(logs)
            await queue.bind(topics, "*.orange.*")
            await queue.bind(headers, "", arguments={"x-match": "all", "colour": "red"})
            await topics.bind(logs)
            await logs.publish(Message(b"1"), routing_key="info")
            await topics.publish(Message(b"2"), routing_key="quick.orange.fox")
            await headers.publish(Message(b"3", headers={"colour": "red"}), routing_key="")
            with pytest.raises(DeliveryError):
                await headers.publish(Message(b"4", headers={"colour": "blue"}), routing_key="")
            found = [(await queue.get(timeout=DEADLINE_S, no_ack=True)) for _ in range(3)]
            assert [message.body for message in found if message is not None] == [b"1", b"2", b"3"]
            for exchange in (logs, topics, headers):
                await exchange.delete()

    run(example)


def test_unroutable_and_refused(url: str, name: Names) -> None:
    async def example() -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            with pytest.raises(DeliveryError):
                await channel.default_exchange.publish(Message(b"x"), name(), mandatory=True)
            limits: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
            queue = await channel.declare_queue(name(), arguments=limits)
            await channel.default_exchange.publish(Message(b"fits"), queue.name)
            with pytest.raises(DeliveryError):
                await channel.default_exchange.publish(Message(b"does not"), queue.name)
            await queue.delete(if_empty=False)

    run(example)


def test_a_declaration_that_differs(url: str, name: Names) -> None:
    async def example() -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name(), durable=True)
            with pytest.raises(ChannelPreconditionFailed, match="inequivalent arg"):
                await channel.declare_queue(queue.name, durable=True, arguments={"x-max-length": 1})
            again = await connection.channel()
            await again.queue_delete(queue.name)

    run(example)


def test_transactions(url: str, name: Names) -> None:
    async def example() -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(publisher_confirms=False)
            queue = await channel.declare_queue(name(), durable=True)
            async with channel.transaction():
                await channel.default_exchange.publish(Message(b"kept"), queue.name)
            transaction = channel.transaction()
            await transaction.select()
            await channel.default_exchange.publish(Message(b"dropped"), queue.name)
            await transaction.rollback()
            message = await queue.get(timeout=DEADLINE_S)
            assert message is not None
            assert message.body == b"kept"
            await message.ack()
            assert await queue.get(fail=False) is None
            await transaction.commit()
            await channel.queue_delete(queue.name)

    run(example)


def test_dead_letters(url: str, name: Names) -> None:
    async def example() -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            dead = await channel.declare_queue(name())
            arguments: dict[str, Any] = {
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": dead.name,
            }
            queue = await channel.declare_queue(name(), arguments=arguments)
            await channel.default_exchange.publish(Message(b"bad"), queue.name)
            message = await queue.get(timeout=DEADLINE_S)
            assert message is not None
            await message.reject(requeue=False)
            async with dead.iterator(timeout=DEADLINE_S) as iterator:
                async for letter in iterator:
                    await letter.ack()
                    deaths = letter.headers["x-death"]
                    assert isinstance(deaths, list)
                    [death] = deaths
                    assert isinstance(death, dict)
                    assert (death["queue"], death["reason"]) == (queue.name, "rejected")
                    break
            await queue.delete()
            await dead.delete()

    run(example)


def test_the_robust_connection_comes_back(relay: Relay, name: Names) -> None:
    async def example() -> None:
        connection = await aio_pika.connect_robust(relay.url, reconnect_interval=0.1)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name(), durable=True)
            found: asyncio.Queue[bytes] = asyncio.Queue()

            async def on_message(message: AbstractIncomingMessage) -> None:
                await message.ack()
                await found.put(message.body)

            await queue.consume(on_message)
            await channel.default_exchange.publish(Message(b"before"), queue.name)
            assert await asyncio.wait_for(found.get(), DEADLINE_S) == b"before"
            returned = asyncio.Event()
            connection.reconnect_callbacks.add(lambda *_: returned.set())
            assert relay.cut() == 1
            await asyncio.wait_for(returned.wait(), DEADLINE_S)
            await connection.ready()
            await channel.default_exchange.publish(Message(b"after"), queue.name)
            # The first may come again: its acknowledgement was cut off with the connection, or was not.
            while (body := await asyncio.wait_for(found.get(), DEADLINE_S)) != b"after":
                assert body == b"before"
            await queue.delete(if_unused=False, if_empty=False)

    run(example)


def test_remote_procedure_calls(url: str, name: Names) -> None:
    async def example() -> None:
        method = name()
        async with await aio_pika.connect_robust(url) as connection:
            channel = await connection.channel()
            rpc = await RPC.create(channel)

            async def multiply(*, x: int, y: int) -> int:
                return x * y

            await rpc.register(method, multiply, auto_delete=True)
            proxies = [rpc.call(method, kwargs={"x": number, "y": 2}) for number in range(20)]
            assert await asyncio.gather(*proxies) == [2 * number for number in range(20)]

            async def failing() -> None:
                raise ValueError("told to the caller")

            await rpc.register(f"{method}.failing", failing, auto_delete=True)
            with pytest.raises(ValueError, match="told to the caller"):
                await rpc.call(f"{method}.failing")
            await rpc.close()

    run(example)


def test_master_and_worker(url: str, name: Names) -> None:
    async def example() -> None:
        task = name()
        async with await aio_pika.connect_robust(url) as connection:
            channel = await connection.channel()
            master = Master(channel)
            seen: list[int] = []
            done = asyncio.Event()

            async def work(*, task_id: int) -> None:
                seen.append(task_id)
                if task_id == 1 and seen.count(1) == 1:
                    raise NackMessage(requeue=True)
                if task_id == 2:
                    raise RejectMessage(requeue=False)
                if len(seen) == 5:
                    done.set()

            worker: Any = await master.create_worker(task, work, auto_delete=True)
            for number in range(4):
                await master.create_task(task, kwargs={"task_id": number})
            await asyncio.wait_for(done.wait(), DEADLINE_S)
            assert sorted(seen) == [0, 1, 1, 2, 3]
            await worker.close()

    run(example)
