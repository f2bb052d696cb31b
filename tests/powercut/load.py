"""What clients do to the node: publish and consume until it dies; afterwards, read everything again.

Every event goes into the ``History`` in the order in which a client could know of it: an attempt before its
bytes leave, a settlement before its order leaves, a confirmation when it arrived.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.powercut import amqp_client, amqp_load
from tests.powercut.client import FAILURE, Connection, Message
from tests.powercut.history import History
from tests.powercut.kept import Kept
from tests.powercut.node import STREAM, WORK, Node

PUBLISHERS = {STREAM: (1, 2, 3), WORK: (11, 12, 13)}
MARKERS = {STREAM: 91, WORK: 92}
"""Publishers of the one message that says where a reading may end."""

GROUP, TAIL = "workers", "tail"
WINDOWS = (1, 5, 50, 200)
KEEP = 0.2
"""Share of deliveries that consumers leave unsettled under load."""

ORDER_SIZE = 25
"""Deliveries settled by one order."""

DRAIN_TIMEOUT_CONTROL_S = 3.0
"""Where messages are expected to be lost."""

MARKER_TIMEOUT_S = 20.0
READ_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 30.0
POLL_S = 0.02
IDENTIFIERS = 65_535
CERTAIN = (0x87, 0x90, 0x95, 0x97)
"""Reason codes by which a message was not looked at further: not authorised, topic, size, quota. Any other says that
something failed, possibly after the message was written."""


class ReadError(RuntimeError):
    """Reading after a restart did not come to its end; the text says how far it came."""


@dataclass
class Publisher:
    """Keeps a window of messages under way to one queue."""

    connection: Connection
    history: History
    number: int
    queue: str
    window: int
    under_way: dict[int, int] = field(default_factory=dict)
    identifier: int = 0

    def start(self) -> None:
        """Open the round and fill the window."""
        self.history.begin(self.number, self.queue)
        self.connection.on_confirm = self.confirmed
        for _ in range(self.window):
            self.send()

    def send(self) -> int:
        """One more message; its sequence number."""
        self.identifier = self.identifier % IDENTIFIERS + 1
        sequence = self.history.publishers[self.number].attempted
        body = self.history.attempt(self.number)
        self.under_way[self.identifier] = sequence
        self.connection.publish(f"$queue/{self.queue}", self.identifier, body)
        return sequence

    def confirmed(self, identifier: int, reason: int) -> None:
        """PUBACK."""
        sequence = self.under_way.pop(identifier)
        if reason >= FAILURE:
            self.history.refuse(self.number, sequence, reason in CERTAIN)
        else:
            self.history.confirm(self.number, sequence)
        self.send()


@dataclass
class Consumer:
    """A member of a group. ``orders``: settles by ``$ack`` and learns whether that is committed; else by PUBACK."""

    connection: Connection
    history: History
    queue: str
    group: str
    orders: bool
    keep: Callable[[], bool]
    seen: Callable[[int], None] = lambda offset: None
    waiting: list[int] = field(default_factory=list)
    under_way: dict[int, list[int]] = field(default_factory=dict)
    identifier: int = 0

    async def start(self) -> None:
        """Subscribe. Raises ``OSError``."""
        self.connection.on_message = self.take
        self.connection.on_confirm = self.confirmed
        mode = "explicit" if self.orders else "auto"
        await self.connection.subscribe(
            f"$queue/{self.queue}",
            (("consumer-group", self.group), ("start", "first"), ("ack-mode", mode)),
        )

    def take(self, message: Message) -> None:
        """A delivery."""
        offset = int(message.properties["offset"])
        self.history.deliver(self.queue, self.group, offset, message.body)
        if self.keep():
            if self.orders:
                self.connection.acknowledge(message.identifier)
        elif self.orders:
            self.connection.acknowledge(message.identifier)
            self.waiting.append(offset)
            if len(self.waiting) >= ORDER_SIZE:
                self.order()
        else:
            self.history.settle(self.queue, self.group, [offset])
            self.connection.acknowledge(message.identifier)
        self.seen(offset)

    def order(self) -> None:
        """Settle what is waiting by one order."""
        if not self.waiting:
            return
        offsets, self.waiting = self.waiting, []
        self.identifier = self.identifier % IDENTIFIERS + 1
        self.history.settle(self.queue, self.group, offsets)
        self.under_way[self.identifier] = offsets
        named = tuple(("message-id", f"{self.queue}:{offset}") for offset in offsets)
        topic = f"$queue/{self.queue}/$ack"
        properties = (*named, ("group-id", self.group))
        self.connection.publish(topic, self.identifier, b"", properties)

    def confirmed(self, identifier: int, reason: int) -> None:
        """PUBACK of an order. Only 0 says that it took effect; 0x10, that the consumer does not hold them."""
        offsets = self.under_way.pop(identifier)
        if reason == 0:
            self.history.settled(self.queue, self.group, offsets)


async def run(
    node: Node,
    history: History,
    kept: Kept,
    chance: random.Random,
    seconds: float,
    end: Callable[[], None],
    amqp: bool = True,
) -> bool:
    """Load the node for so long, or until it dies by itself; then ``end`` kills it, in a thread.

    What still arrives while it is being killed counts. True when it died by itself. ``amqp``: clients of AMQP
    publish beside those of MQTT.
    """
    port = node.port
    connections: list[Connection | amqp_client.Connection] = []
    try:
        for queue, group, orders in (
            (WORK, GROUP, True),
            (WORK, GROUP, False),
            (STREAM, TAIL, False),
        ):
            connection = await Connection.open(port, f"cut-{queue}-{orders}")
            connections.append(connection)
            keep = (lambda: chance.random() < KEEP) if queue == WORK else (lambda: False)
            await Consumer(connection, history, queue, group, orders, keep).start()
        for queue, numbers in PUBLISHERS.items():
            for number in numbers:
                connection = await Connection.open(port, f"cut-p{number}")
                connections.append(connection)
                Publisher(connection, history, number, queue, chance.choice(WINDOWS)).start()
        connections.append(await kept.load(port))
        if amqp:
            connections += await amqp_load.start(node.amqp_port, history, chance)
        closed = [connection.closed for connection in connections]
        done, _ = await asyncio.wait(closed, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        died = bool(done)
    except OSError:
        died = True
    await asyncio.to_thread(end)
    await asyncio.gather(*(connection.closed for connection in connections))
    return died


async def _marker(port: int, history: History, queue: str) -> tuple[int, int]:
    """Publish the message at which reading may end; publisher and sequence."""
    connection = await Connection.open(port, f"cut-m-{queue}")
    marker = Publisher(connection, history, MARKERS[queue], queue, 0)
    answered = asyncio.get_running_loop().create_future()

    def confirmed(identifier: int, reason: int) -> None:
        if not answered.done():
            answered.set_result(reason)

    marker.start()
    connection.on_confirm = confirmed
    sequence = marker.send()
    try:
        async with asyncio.timeout(MARKER_TIMEOUT_S):
            reason = await answered
    except TimeoutError:
        raise ReadError(f"{queue}: the node does not confirm after its restart") from None
    connection.close()
    if reason >= FAILURE:
        raise ReadError(f"{queue}: a message after the restart was refused: {reason:#04x}")
    history.confirm(marker.number, sequence)
    return marker.number, sequence


async def _until(
    holds: Callable[[], bool], come: Callable[[], int], connection: Connection, seconds: float
) -> bool:
    """Whether something came to hold, with the connection standing, before nothing new had come for so long:
    what an image has after many rounds takes a busy machine minutes to read."""
    now = asyncio.get_running_loop().time
    seen, give_up = come(), now() + seconds
    while not holds():
        if come() != seen:
            seen, give_up = come(), now() + seconds
        if connection.closed.done() or now() > give_up:
            return False
        await asyncio.sleep(POLL_S)
    return True


async def read_stream(port: int, history: History, group: str) -> None:
    """Read the stream from its first offset with a group that is new. Raises ``ReadError``."""
    marker = await _marker(port, history, STREAM)
    connection = await Connection.open(port, "cut-audit")
    last = -1

    def ascending(offset: int) -> None:
        nonlocal last
        if offset <= last:
            history.violated(f"{STREAM}: {group} was given offset {offset} after {last}")
        last = offset

    await Consumer(connection, history, STREAM, group, False, lambda: False, ascending).start()
    there = history.places[STREAM]
    ended = await _until(lambda: marker in there, lambda: last, connection, READ_TIMEOUT_S)
    connection.close()
    if not ended:
        taken = len(history.groups[STREAM, group].delivered)
        raise ReadError(f"{STREAM}: reading stopped after {taken} messages, last offset {last}")


async def drain_work(
    port: int, history: History, chance: random.Random, seconds: float = DRAIN_TIMEOUT_S
) -> None:
    """Take what the work queue holds and settle most of it by orders; what is missing is waited for so long.

    Raises ``ReadError``.
    """
    marker = await _marker(port, history, WORK)
    connection = await Connection.open(port, "cut-drain")
    consumer = Consumer(connection, history, WORK, GROUP, True, lambda: chance.random() < KEEP / 4)
    await consumer.start()

    def drained() -> bool:
        consumer.order()
        return (
            marker in history.places[WORK] and not history.missing(WORK) and not consumer.under_way
        )

    await _until(drained, lambda: len(history.places[WORK]), connection, seconds)
    connection.close()
    if marker not in history.places[WORK]:
        raise ReadError(f"{WORK}: the newest message is not delivered")
