"""Consumers: groups over MQTT that settle by orders or by PUBACK, AMQP's with manual acknowledgements, readers of streams.

An order is answered when the settlement is committed, so that what it settled must not come again; PUBACK, basic.ack and
the dispositions of AMQP 1.0 are answered by nobody. Everything goes into the history before it leaves, and when its answer came.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from proton import Delivery

from tests.chaos import amqp10_client
from tests.chaos.board import Board, Roamer, until
from tests.chaos.publishers import declare_quorum
from tests.chaos.records import OK, SENT, UNKNOWN, Key, Settle
from tests.differential import wire
from tests.powercut import amqp_client
from tests.powercut.client import Connection, Message

TICK_S = 0.05
ORDER_SIZE = 25
"""Deliveries settled by one order, unless a tick comes before."""
PREFETCH = 50
ORDER_ANSWER_S = 8.0
"""An order that is not answered by then: the consumer goes elsewhere."""
ACK_EVERY = 7
"""AMQP: deliveries acknowledged together, unless a tick comes before."""


class Consumer(Roamer):
    """What is the same in every protocol."""

    def __init__(self, board: Board, name: str, home: int, queue: str, group: str) -> None:
        super().__init__(board, name, home)
        self.queue = queue
        self.group = group
        self.waiting: list[tuple[int, Key]] = []
        """Taken, and not settled yet."""

    def flush(self) -> None:
        """Settle what waits."""

    def stuck(self) -> bool:
        """Whether an answer is overdue."""
        return False

    async def talk(self, closed: asyncio.Future[None]) -> str:
        while not self.finished():
            await asyncio.wait((closed,), timeout=TICK_S)
            if closed.done():
                return "closed by the node"
            self.flush()
            if self.stuck():
                return "an order is not answered"
        return ""

    def record(
        self, verb: str, settled: list[tuple[int, Key]], asked: float, outcome: str, at: str
    ) -> None:
        """Write what was said about deliveries, over which connection."""
        names = (self.name, self.protocol, self.host.name, at, self.queue, self.group)
        offsets = tuple(offset for offset, _ in settled if offset >= 0)
        keys = tuple(key for _, key in settled)
        times = (asked, self.board.now())
        self.board.history.write(Settle(*names, verb, offsets, keys, *times, outcome))


class MqttConsumer(Consumer):
    """A member of a group. ``verb``: "ack" by orders, "commit" by one order for all before it, "" by PUBACK alone.
    ``reject``: which messages it rejects instead."""

    protocol = "mqtt"

    def __init__(
        self,
        board: Board,
        name: str,
        home: int,
        queue: str,
        group: str,
        verb: str = "ack",
        reject: Callable[[Key], bool] = lambda key: False,
    ) -> None:
        super().__init__(board, name, home, queue, group)
        self.verb = verb
        self.reject = reject
        self.connection: Connection | None = None
        self.orders: dict[int, tuple[str, list[tuple[int, Key]], float]] = {}
        self.identifier = 0

    async def connect(self) -> asyncio.Future[None]:
        asked = self.board.now()
        name = f"{self.name}-{self.connections}"
        opened = await Connection.open(self.host.mqtt, name, host=self.host.address)
        self.connection = opened
        opened.on_message = self._take
        opened.on_confirm = self._answered
        # A commit makes no room for more: PUBACK does, and then what was given is not waited for.
        mode = "explicit" if self.verb in ("ack", "reject") else "auto"
        wanted = (("consumer-group", self.group), ("ack-mode", mode))
        topic = self.queue if self.queue.startswith("$") else f"$queue/{self.queue}"
        await opened.subscribe(topic, (*wanted, ("prefetch", str(PREFETCH))))
        self.joined(self.queue, self.group, asked)
        return opened.closed

    def _take(self, message: Message) -> None:
        assert self.connection is not None
        offset = int(message.properties.get("offset", "-1"))
        repeat = message.properties.get("x-delivery-count", "0") != "0"
        key = self.board.delivered(self, self.queue, self.group, offset, message.body, repeat)
        self.connection.acknowledge(message.identifier)
        if not self.verb:
            asked = self.board.now()
            self.record("ack", [(offset, key)], asked, SENT, self.connection_name)
            return
        self.waiting.append((offset, key))
        if len(self.waiting) >= ORDER_SIZE:
            self.flush()

    def flush(self) -> None:
        taken, self.waiting = self.waiting, []
        rejected = [each for each in taken if self.reject(each[1])]
        if rejected:
            self._order("reject", rejected)
        if kept := [each for each in taken if not self.reject(each[1])]:
            self._order(self.verb, kept)

    def _order(self, verb: str, settled: list[tuple[int, Key]]) -> None:
        assert self.connection is not None
        self.identifier = self.identifier % 65_535 + 1
        self.orders[self.identifier] = (verb, settled, self.board.now())
        named = [offset for offset, _ in settled]
        if verb == "commit":
            named = [max(named)]
        identifiers = tuple(("message-id", f"{self.queue}:{offset}") for offset in named)
        properties = (*identifiers, ("group-id", self.group))
        self.connection.publish(f"$queue/{self.queue}/${verb}", self.identifier, b"", properties)

    def _answered(self, identifier: int, reason: int) -> None:
        verb, settled, asked = self.orders.pop(identifier)
        outcome = OK if reason == 0 else UNKNOWN
        self.record(verb, settled, asked, outcome, self.connection_name)
        if verb == "reject" and outcome == OK:
            self.board.rejected.update(key for _, key in settled)

    def stuck(self) -> bool:
        if not self.orders:
            return False
        return self.board.now() - next(iter(self.orders.values()))[2] > ORDER_ANSWER_S

    def ended(self, why: str) -> None:
        self.waiting = []
        orders, self.orders = self.orders, {}
        for verb, settled, asked in orders.values():
            self.record(verb, settled, asked, UNKNOWN, self.connection_name)

    def abandon(self) -> None:
        if self.connection is not None:
            self.connection.abort()
            self.connection = None


class Auditor(MqttConsumer):
    """Reads a stream from its first offset, over one node, as a group that is new."""

    audit = True

    def __init__(self, board: Board, name: str, home: int, queue: str) -> None:
        super().__init__(board, name, home, queue, name, verb="")
        self._alone = home % len(board.hosts)

    async def connect(self) -> asyncio.Future[None]:
        self.at = self._alone
        return await super().connect()

    def record(
        self, verb: str, settled: list[tuple[int, Key]], asked: float, outcome: str, at: str
    ) -> None:
        """Nothing is settled by reading."""


class AmqpConsumer(Consumer):
    """One of the queue's consumers over AMQP, acknowledging several at once."""

    protocol = "amqp"

    def __init__(
        self, board: Board, name: str, home: int, queue: str, group: str, declare: bool = False
    ) -> None:
        super().__init__(board, name, home, queue, group)
        self.connection: amqp_client.Connection | None = None
        self.declare = declare
        self.tag = 0
        self.cancelled = False

    async def connect(self) -> asyncio.Future[None]:
        asked = self.board.now()
        opened = await amqp_client.Connection.open(self.host.amqp, self.host.address)
        self.connection = opened
        self.cancelled = False
        opened.on_message = self._take
        opened.on_method = self._told
        if self.declare:
            await declare_quorum(opened, self.queue)
        prefetch = wire.method(amqp_client.CHANNEL, "basic.qos", {"prefetch_count": PREFETCH})
        await opened.ask(prefetch, "basic.qos-ok")
        consume = wire.method(amqp_client.CHANNEL, "basic.consume", {"queue": self.queue})
        await opened.ask(consume, "basic.consume-ok")
        self.joined(self.queue, self.group, asked)
        return opened.closed

    def _told(self, method: wire.Method) -> None:
        self.cancelled = self.cancelled or method.name == "basic.cancel"

    def stuck(self) -> bool:
        return self.cancelled

    def _take(self, deliver: wire.Method, body: bytes) -> None:
        repeat = deliver.fields["redelivered"]
        key = self.board.delivered(self, self.queue, self.group, -1, body, repeat)
        self.tag = deliver.fields["delivery_tag"]
        self.waiting.append((-1, key))
        if len(self.waiting) >= ACK_EVERY:
            self.flush()

    def flush(self) -> None:
        taken, self.waiting = self.waiting, []
        if not taken or self.connection is None:
            return
        fields = {"delivery_tag": self.tag, "multiple": True}
        asked = self.board.now()
        self.connection.send(wire.method(amqp_client.CHANNEL, "basic.ack", fields))
        self.record("ack", taken, asked, SENT, self.connection_name)

    def ended(self, why: str) -> None:
        self.waiting = []

    def abandon(self) -> None:
        if self.connection is not None:
            self.connection.abort()
            self.connection = None


class LateConsumer(AmqpConsumer):
    """A consumer that comes when nothing more is published, so that the queue keeps everything until then."""

    async def run(self) -> None:
        await until(lambda: self.board.stopping, math.inf, TICK_S)
        await super().run()


class Amqp10Consumer(Consumer):
    """One of the queue's consumers over AMQP 1.0, accepting several at once."""

    protocol = "amqp10"

    def __init__(self, board: Board, name: str, home: int, queue: str, group: str) -> None:
        super().__init__(board, name, home, queue, group)
        self.connection: amqp10_client.Connection | None = None
        self.taken: list[Delivery] = []

    async def connect(self) -> asyncio.Future[None]:
        asked, host = self.board.now(), self.host
        opened = await amqp10_client.Connection.open(host.amqp, host.address, self.connection_name)
        self.connection = opened
        opened.on_message = self._take
        await opened.consume(f"/queues/{self.queue}", PREFETCH)
        self.joined(self.queue, self.group, asked)
        return opened.closed

    def _take(self, delivery: Delivery, body: bytes, repeat: bool) -> None:
        key = self.board.delivered(self, self.queue, self.group, -1, body, repeat)
        self.taken.append(delivery)
        self.waiting.append((-1, key))
        if len(self.waiting) >= ACK_EVERY:
            self.flush()

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        taken, self.taken = self.taken, []
        if not waiting or self.connection is None:
            return
        asked = self.board.now()
        self.connection.accept(taken)
        self.record("ack", waiting, asked, SENT, self.connection_name)

    def ended(self, why: str) -> None:
        self.waiting, self.taken = [], []

    def abandon(self) -> None:
        if self.connection is not None:
            self.connection.abort()
            self.connection = None
