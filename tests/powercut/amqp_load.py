"""What AMQP clients do to the node: publish with confirms, and in transactions over both queues, until it dies.

They are workers beside MQTT's and write to the same history: what ``basic.ack`` and ``tx.commit-ok`` confirmed has to be
there afterwards, where the readings over MQTT look for it. Of a transaction that was not answered any beginning may be
there; after a rollback nothing is.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.differential import wire
from tests.powercut.amqp_client import Connection
from tests.powercut.history import History
from tests.powercut.node import STREAM, WORK

PUBLISHERS = {STREAM: (21,), WORK: (31,)}
"""With confirms, each to one queue. Few: everything they confirm is read again after every cut."""

TRANSACTIONS = {STREAM: 41, WORK: 42}
"""One client's messages to each queue, committed together."""

WINDOWS = (1, 3, 10, 50)
SIZES = (1, 2, 7, 20)
"""Messages per queue in one transaction."""

ROLLED_BACK = 0.2
"""Share of transactions that are taken back."""


@dataclass
class Confirmed:
    """Keeps a window of messages under way to one queue; confirms come singly or as ranges."""

    connection: Connection
    history: History
    number: int
    queue: str
    window: int
    under_way: dict[int, int] = field(default_factory=dict)
    tag: int = 0

    async def start(self) -> None:
        """Ask for confirms, open the round and fill the window. Raises ``OSError``."""
        await self.connection.call("confirm.select")
        self.history.begin(self.number, self.queue)
        self.connection.on_method = self.answered
        for _ in range(self.window):
            self.send()

    def send(self) -> None:
        """One more message."""
        self.tag += 1
        self.under_way[self.tag] = self.history.publishers[self.number].attempted
        self.connection.publish(self.queue, self.history.attempt(self.number))

    def answered(self, method: wire.Method) -> None:
        """basic.ack or basic.nack. A nack does not say that the message is nowhere."""
        if method.name not in ("basic.ack", "basic.nack"):
            self.history.violated(f"a publisher was sent {method.name}")
            return
        last = method.fields["delivery_tag"]
        several = method.fields["multiple"]
        tags = [tag for tag in self.under_way if tag <= last] if several else [last]
        for tag in tags:
            sequence = self.under_way.pop(tag)
            if method.name == "basic.ack":
                self.history.confirm(self.number, sequence)
            else:
                self.history.refuse(self.number, sequence, certain=False)
            self.send()


@dataclass
class Transactional:
    """One transaction after the other, over both queues; some are rolled back."""

    connection: Connection
    history: History
    chance: random.Random
    under_way: list[tuple[int, int]] = field(default_factory=list)

    async def start(self) -> None:
        """Ask for transactions, open the round and begin. Raises ``OSError``."""
        await self.connection.call("tx.select")
        for queue, number in TRANSACTIONS.items():
            self.history.begin(number, queue)
        self.connection.on_method = self.answered
        self.send()

    def send(self) -> None:
        """The messages of one transaction and its end."""
        count = self.chance.choice(SIZES)
        for _ in range(count):
            for queue, number in TRANSACTIONS.items():
                self.under_way.append((number, self.history.publishers[number].attempted))
                self.connection.publish(queue, self.history.attempt(number))
        taken_back = self.chance.random() < ROLLED_BACK
        self.connection.method("tx.rollback" if taken_back else "tx.commit")

    def answered(self, method: wire.Method) -> None:
        """tx.commit-ok or tx.rollback-ok."""
        messages, self.under_way = self.under_way, []
        for number, sequence in messages:
            if method.name == "tx.commit-ok":
                self.history.confirm(number, sequence)
            elif method.name == "tx.rollback-ok":
                self.history.refuse(number, sequence)
            else:
                self.history.violated(f"a transaction was answered with {method.name}")
        self.send()


async def start(port: int, history: History, chance: random.Random) -> list[Connection]:
    """Start all of these workers; their connections. Raises ``OSError``."""
    connections: list[Connection] = []
    starts: list[Callable[[], Awaitable[None]]] = []
    for queue, numbers in PUBLISHERS.items():
        for number in numbers:
            connections.append(await Connection.open(port))
            window = chance.choice(WINDOWS)
            starts.append(Confirmed(connections[-1], history, number, queue, window).start)
    connections.append(await Connection.open(port))
    starts.append(Transactional(connections[-1], history, chance).start)
    for begin in starts:
        await begin()
    return connections
