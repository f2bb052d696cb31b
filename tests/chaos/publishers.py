"""Publishers: they keep a window of messages under way at a pace, and publish again, in order, what is not known to be there.

What a node refused or did not answer goes out again before anything new, and only when nothing else is under way, so that
a publisher's messages stay in its order as far as it can see.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from dataclasses import dataclass

from proton import Delivery

from tests.chaos import amqp10_client, bodies
from tests.chaos.board import Board, Roamer
from tests.chaos.records import FAIL, OK, UNKNOWN, Publish
from tests.chaos.settings import BOTH
from tests.differential import wire
from tests.powercut import amqp_client
from tests.powercut.client import FAILURE, Connection
from tests.powercut.load import CERTAIN

TICK_S = 0.01
ANSWER_S = 2.0
"""Time beyond that of a node's own timeout after which an unanswered publisher turns to another node."""
NACK_PAUSE_S = 0.2
NACKS_MAX = 5
"""So many refusals after each other, and a publisher tries another node."""
BURST_S = 0.1
"""What could not be sent for so long at most is made up for later."""
IDENTIFIERS = 65_535


@dataclass(frozen=True)
class Route:
    """Where a publisher sends: to one queue, or to a topic that several take. ``number`` is its identity; ``count``: how
    many messages, 0 for as many as there is time for; ``time_to_live``: seconds after which they may be gone, 0 for never."""

    number: int
    queues: tuple[str, ...]
    window: int
    rate: float
    count: int = 0
    time_to_live: int = 0


class Attempt:
    """A message on its way."""

    __slots__ = ("connection", "invoke", "node", "sequence")

    def __init__(self, sequence: int, node: str, connection: str, invoke: float) -> None:
        self.sequence = sequence
        self.node = node
        self.connection = connection
        self.invoke = invoke


class Publisher(Roamer):
    """What is the same in every protocol."""

    def __init__(self, board: Board, name: str, home: int, route: Route) -> None:
        super().__init__(board, name, home)
        self.route = route
        self.under_way: dict[int, Attempt] = {}
        self.again: list[int] = []
        """Sequences to publish again, ascending."""
        self.next = 0
        self.nacks = 0
        self.resume_at = 0.0

    @abstractmethod
    def send(self, body: bytes) -> int:
        """Publish; the identifier by which it will be answered."""

    def finished(self) -> bool:
        idle = not self.again and not self.under_way
        return self.board.ending or (idle and not self._more())

    def _more(self) -> bool:
        """Whether it begins new messages."""
        done = self.route.count and self.next >= self.route.count
        return not (self.board.stopping or done)

    async def talk(self, closed: asyncio.Future[None]) -> str:
        loop = asyncio.get_running_loop()
        self.nacks = 0
        earned, before = 0.0, loop.time()
        while not self.finished():
            await asyncio.wait((closed,), timeout=TICK_S)
            if closed.done():
                return "closed by the node"
            now = loop.time()
            earned = min(earned + (now - before) * self.route.rate, self.route.rate * BURST_S + 1)
            before = now
            if self.under_way:
                oldest = next(iter(self.under_way.values()))
                if self._is_late(oldest):
                    return "timeout"
            if self.nacks >= NACKS_MAX:
                return "refused"
            while earned >= 1 and self._next():
                earned -= 1
        return ""

    def _next(self) -> bool:
        """Send one message if one may be sent."""
        if len(self.under_way) >= self.route.window or self.board.now() < self.resume_at:
            return False
        if self.nacks and self.under_way:
            return False
        if self.again:
            sequence = self.again.pop(0)
        elif self._more():
            sequence = self.next
            self.next += 1
        else:
            return False
        body = self.board.body(self.route.number, sequence)
        made = Attempt(sequence, self.host.name, self.connection_name, self.board.now())
        self.under_way[self.send(body)] = made
        return True

    def answered(self, identifier: int, outcome: str, why: str) -> None:
        """The node has spoken about one message."""
        attempt = self.under_way.pop(identifier, None)
        if attempt is None:
            return
        self._record(attempt, outcome, why)
        if outcome == OK:
            if not self.again:
                self.nacks = 0
            return
        self.nacks += 1
        self.resume_at = self.board.now() + NACK_PAUSE_S
        self._publish_again(attempt.sequence)

    def ended(self, why: str) -> None:
        attempts, self.under_way = self.under_way, {}
        for attempt in attempts.values():
            self._record(attempt, UNKNOWN, self._told(attempt, why))
            self._publish_again(attempt.sequence)

    def _told(self, attempt: Attempt, why: str) -> str:
        """Only what waited for long was not answered; the rest was taken back with it."""
        return why if why != "timeout" or self._is_late(attempt) else "given up with another"

    def _is_late(self, attempt: Attempt) -> bool:
        """Whether it should have been answered by now."""
        return self.board.now() - attempt.invoke > self.board.ack_timeout + ANSWER_S

    def _publish_again(self, sequence: int) -> None:
        self.again.append(sequence)
        self.again.sort()

    def _record(self, attempt: Attempt, outcome: str, why: str) -> None:
        body = self.board.body(self.route.number, attempt.sequence)
        record = Publish(
            client=self.name,
            protocol=self.protocol,
            node=attempt.node,
            connection=attempt.connection,
            queues=self.route.queues,
            publisher=self.route.number,
            sequence=attempt.sequence,
            digest=bodies.digest(body),
            invoke=attempt.invoke,
            complete=self.board.now(),
            outcome=outcome,
            why=why,
            transaction=-1,
        )
        self.board.published(record)


class MqttPublisher(Publisher):
    """QoS 1 by MQTT 5."""

    protocol = "mqtt"

    def __init__(self, board: Board, name: str, home: int, route: Route) -> None:
        super().__init__(board, name, home, route)
        self.connection: Connection | None = None
        self.identifier = 0
        several = len(route.queues) > 1
        self.topic = BOTH if several else f"$queue/{route.queues[0]}"

    async def connect(self) -> asyncio.Future[None]:
        self.connection = await Connection.open(self.host.mqtt, self.name, host=self.host.address)
        self.connection.on_confirm = self._confirmed
        return self.connection.closed

    def send(self, body: bytes) -> int:
        assert self.connection is not None
        self.identifier = self.identifier % IDENTIFIERS + 1
        expiry = self.route.time_to_live
        self.connection.publish(self.topic, self.identifier, body, expiry=expiry)
        return self.identifier

    def _confirmed(self, identifier: int, reason: int) -> None:
        if reason < FAILURE:
            self.answered(identifier, OK, "")
        else:
            certain = reason in CERTAIN and len(self.route.queues) == 1
            self.answered(identifier, FAIL if certain else UNKNOWN, f"reason {reason:#04x}")

    def abandon(self) -> None:
        if self.connection is not None:
            self.connection.abort()
            self.connection = None


class AmqpPublisher(Publisher):
    """Persistent messages with confirms. ``declare``: the queue is a quorum queue that it declares itself."""

    protocol = "amqp"

    def __init__(
        self, board: Board, name: str, home: int, route: Route, declare: bool = False
    ) -> None:
        super().__init__(board, name, home, route)
        self.connection: amqp_client.Connection | None = None
        self.declare = declare
        self.tag = 0

    async def connect(self) -> asyncio.Future[None]:
        opened = await amqp_client.Connection.open(self.host.amqp, self.host.address)
        self.connection = opened
        self.tag = 0
        if self.declare:
            await declare_quorum(opened, self.route.queues[0])
        await opened.call("confirm.select")
        opened.on_method = self._answer
        return opened.closed

    def send(self, body: bytes) -> int:
        assert self.connection is not None
        self.tag += 1
        self.connection.publish(self.route.queues[0], body, self.route.time_to_live)
        return self.tag

    def _answer(self, method: wire.Method) -> None:
        if method.name not in ("basic.ack", "basic.nack"):
            return
        last = method.fields["delivery_tag"]
        several = method.fields["multiple"]
        tags = [tag for tag in self.under_way if tag <= last] if several else [last]
        for tag in tags:
            if method.name == "basic.ack":
                self.answered(tag, OK, "")
            else:
                self.answered(tag, UNKNOWN, "basic.nack")

    def abandon(self) -> None:
        if self.connection is not None:
            self.connection.abort()
            self.connection = None


class Amqp10Publisher(Publisher):
    """Durable messages over AMQP 1.0: accepted is confirmed, released reached no queue."""

    protocol = "amqp10"

    def __init__(self, board: Board, name: str, home: int, route: Route) -> None:
        super().__init__(board, name, home, route)
        self.connection: amqp10_client.Connection | None = None

    async def connect(self) -> asyncio.Future[None]:
        host = self.host
        opened = await amqp10_client.Connection.open(host.amqp, host.address, self.connection_name)
        self.connection = opened
        opened.on_outcome = self._settled
        await opened.publish_to(f"/queues/{self.route.queues[0]}")
        return opened.closed

    def send(self, body: bytes) -> int:
        assert self.connection is not None
        return self.connection.publish(body, self.route.time_to_live)

    def _settled(self, tag: int, state: int) -> None:
        if state == Delivery.ACCEPTED:
            self.answered(tag, OK, "")
        else:
            self.answered(tag, FAIL if state == Delivery.RELEASED else UNKNOWN, f"state {state}")

    def abandon(self) -> None:
        if self.connection is not None:
            self.connection.abort()
            self.connection = None


async def declare_quorum(connection: amqp_client.Connection, queue: str) -> None:
    """Declare a quorum queue that gives nothing up. Raises ``OSError``."""
    # In the group that `tests.chaos.settings` names.
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": -1, "x-fluxmq-group": "default"}
    fields = {"queue": queue, "durable": True, "arguments": arguments}
    asked = wire.method(amqp_client.CHANNEL, "queue.declare", fields)
    await connection.ask(asked, "queue.declare-ok")
