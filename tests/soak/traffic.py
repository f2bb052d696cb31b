"""The load of a soak: reply queues that come and go beside messages that do not stop.

A reply queue is exclusive and named by the server: declared, consumed, used for one message, deleted. Connections stay. The
client keeps to a schedule; where the broker is slower there are fewer queues, and the report says how many.
"""

from __future__ import annotations

import asyncio
import itertools

from tests.broker import HOST
from tests.conformance import wire as mqtt
from tests.differential import wire
from tests.powercut.amqp_client import CHANNEL, Connection

CONNECTIONS = 8
"""AMQP connections that share the queues."""
ANSWER_SECONDS = 30.0
"""A message that has not come by then is lost."""
BODY = b"x" * 200
TOPIC = "soak/beat"


class Schedule:
    """When something is to be done next: so many a second, counted from now. One that is late does not make up for it."""

    def __init__(self, per_second: float) -> None:
        self._apart = 1 / per_second
        self._next = asyncio.get_running_loop().time()

    async def turn(self) -> None:
        """Wait until it is time."""
        now = asyncio.get_running_loop().time()
        self._next = max(self._next + self._apart, now - 1)
        await asyncio.sleep(max(0.0, self._next - now))


class Replies:
    """Makes reply queues, ``per_second`` of them."""

    def __init__(self, port: int, per_second: float) -> None:
        self._port = port
        self._per_second = per_second
        self.queues = 0
        """Queues that were made, used and deleted."""

    async def run(self) -> None:
        """Until cancelled. Raises OSError when the broker refuses, AssertionError when a message is lost."""
        connections = [await Connection.open(self._port) for _ in range(CONNECTIONS)]
        schedule = Schedule(self._per_second)
        try:
            async with asyncio.TaskGroup() as group:
                for connection in connections:
                    group.create_task(self._use(connection, schedule))
        finally:
            for connection in connections:
                connection.close()

    async def _use(self, connection: Connection, schedule: Schedule) -> None:
        while True:
            await schedule.turn()
            came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            connection.on_message = lambda _deliver, body, came=came: came.set_result(body)  # type: ignore[misc]
            declare = wire.method(CHANNEL, "queue.declare", {"exclusive": True})
            answer = await connection.ask(declare, "queue.declare-ok")
            queue = answer.fields["queue"]
            told = {"queue": queue, "consumer_tag": "replies", "no_ack": True}
            await connection.ask(wire.method(CHANNEL, "basic.consume", told), "basic.consume-ok")
            connection.publish(queue, BODY)
            # Not asyncio.wait_for: before Python 3.12 it may lose a cancellation that comes with the answer.
            async with asyncio.timeout(ANSWER_SECONDS):
                assert await came == BODY
            cancel = wire.method(CHANNEL, "basic.cancel", {"consumer_tag": "replies"})
            await connection.ask(cancel, "basic.cancel-ok")
            delete = wire.method(CHANNEL, "queue.delete", {"queue": queue})
            await connection.ask(delete, "queue.delete-ok")
            self.queues += 1


class Beat:
    """An MQTT client that gets what it publishes, ``per_second`` messages."""

    def __init__(self, port: int, per_second: float) -> None:
        self._port = port
        self._per_second = per_second
        self.sent = 0
        self.received_bytes = 0

    async def run(self) -> None:
        """Until cancelled. Raises OSError when the connection ends."""
        reader, writer = await asyncio.open_connection(HOST, self._port)
        try:
            writer.write(mqtt.connect(5, "soak", keep_alive=0))
            writer.write(mqtt.subscribe(5, 1, [mqtt.Filter(TOPIC, 0)], ()))
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(reader))
                group.create_task(self._publish(writer))
        finally:
            writer.close()

    async def _publish(self, writer: asyncio.StreamWriter) -> None:
        schedule = Schedule(self._per_second)
        for number in itertools.count():
            await schedule.turn()
            writer.write(mqtt.publish(5, TOPIC, b"%d" % number))
            await writer.drain()
            self.sent += 1

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65_536):
            self.received_bytes += len(data)
        raise ConnectionError("the broker ended the MQTT connection")
