"""A broker in memory that keeps the port's promises, and a client that speaks bytes to the sessions on it.

The topology and routing are the real ones; queues are lists of messages with who holds them. Everything that a shard does
later (durable answers, dispatch) happens in ``MemoryBroker.tick``. A settlement of something that its consumer does not hold is
an assertion here, so that every test also shows that nothing is settled twice.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fluxmq._hot.amqp_parser import AmqpParser
from fluxmq._hot.amqp_run import PublishRun, build_amqp_batches
from fluxmq._hot.batches import Batch, parse
from fluxmq._hot.connection import Connection, Tally
from fluxmq.auth.permissions import Permissions
from fluxmq.auth.users import TopicPermission, VhostPermission
from fluxmq.protocols.amqp091.constants import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    PROTOCOL_HEADER,
)
from fluxmq.protocols.amqp091.content import (
    Properties,
    decode_properties,
    encode_properties,
    frames_of_content,
    split_header,
)
from fluxmq.protocols.amqp091.methods import (
    BasicPublish,
    ChannelOpen,
    ConnectionOpen,
    ConnectionStartOk,
    ConnectionTuneOk,
    Method,
    decode,
    frame,
)
from fluxmq.queues.commands import Verb
from fluxmq.routing.topology.changes import AddVhost, Change, DeleteQueue, QueueUnused
from fluxmq.routing.topology.records import Exchange, Queue, Vhost
from fluxmq.routing.topology.routing import route
from fluxmq.routing.topology.topology import Refusal, Topology
from fluxmq.sessions.amqp091 import refusals
from fluxmq.sessions.amqp091.channel import Channel
from fluxmq.sessions.amqp091.client import Client
from fluxmq.sessions.amqp091.handler import Handler
from fluxmq.sessions.amqp091.ports import (
    AmqpLimits,
    Answer,
    Authenticated,
    Confirming,
    ConsumerPort,
    ConsumerWanted,
    Held,
    QueueStatus,
    Range,
)

REFUSED = 0x97


class MemoryHeld:
    """A consumer of a queue, as its side of the port."""

    def __init__(self, queue: MemoryQueue, wanted: ConsumerWanted, port: ConsumerPort) -> None:
        self.queue = queue
        self.wanted = wanted
        self.port: ConsumerPort | None = port
        self.limit = wanted.limit
        self.stopped = wanted.taking
        self.held: set[int] = set()

    def settle(
        self, verb: Verb, ranges: Sequence[Range], delay: int, reason: bytes, done: Answer | None
    ) -> None:
        assert ranges == sorted(ranges), "ranges ascend"
        for first, last in ranges:
            for offset in range(first, last + 1):
                assert offset in self.held, f"{verb.name} of {offset}, which is not held"
                self.held.discard(offset)
                self.queue.settled.append((verb, offset))
                if verb in (Verb.NACK, Verb.RELEASE):
                    insort(self.queue.ready, offset)
                    if verb is Verb.RELEASE:
                        self.queue.attempts[offset] -= 1
                else:
                    self.queue.messages.pop(offset)
        if done is not None:
            self.queue.broker.later.append(lambda: done(0))

    def set_limit(self, limit: int) -> None:
        self.limit = limit

    def take(self, done: Callable[[bool, int], None]) -> None:
        def answer() -> None:
            queue = self.queue
            if not queue.ready or self.port is None:
                done(False, 0)
                return
            queue.hand_out(self, 1)
            done(True, len(queue.ready))

        self.queue.broker.answer(answer)

    def stop(self) -> None:
        self.stopped = True
        self.queue.left(self)

    def detach(self) -> None:
        self.port = None
        self.queue.attached.remove(self)
        for offset in self.held:
            insort(self.queue.ready, offset)
        self.held.clear()
        self.queue.left(self)


class MemoryQueue:
    """Messages by offset, which of them are ready, how often each was handed out, what became of them."""

    def __init__(self, broker: MemoryBroker, record: Queue) -> None:
        self.broker = broker
        self.record = record
        self.messages: dict[int, tuple[Batch, int]] = {}
        self.ready: list[int] = []
        self.attempts: dict[int, int] = {}
        self.settled: list[tuple[Verb, int]] = []
        self.consumers: list[MemoryHeld] = []
        self.attached: list[MemoryHeld] = []
        self.next_offset = 0

    def full(self, count: int) -> bool:
        arguments = self.record.arguments
        return arguments.get("x-overflow") == "reject-publish" and len(
            self.ready
        ) + count > arguments.get("x-max-length", 1 << 30)

    def append(self, data: bytes) -> None:
        batch = parse(data)
        batch.stamp(self.next_offset, 0, 1)
        for index in range(batch.count):
            offset = self.next_offset + index
            self.messages[offset] = (batch, index)
            self.attempts[offset] = 0
            self.ready.append(offset)
        self.next_offset += batch.count

    def hand_out(self, held: MemoryHeld, most: int) -> None:
        """Give the next messages that lie together in a batch."""
        first = self.ready[0]
        batch, index = self.messages[first]
        attempts = self.attempts[first] + 1
        count = 0
        for offset in self.ready[:most]:
            if (
                self.messages[offset] != (batch, index + count)
                or self.attempts[offset] + 1 != attempts
            ):
                break
            count += 1
        for offset in range(first, first + count):
            self.ready.remove(offset)
            self.attempts[offset] += 1
            if held.wanted.automatic:
                del self.messages[offset]
            else:
                held.held.add(offset)
        assert held.port is not None
        held.port.deliver(batch, index, count, attempts)

    def dispatch(self) -> bool:
        """Give out what there is room for; whether anything was."""
        gave = False
        while self.ready:
            able = [
                held
                for held in self.consumers
                if not held.stopped and (not held.limit or len(held.held) < held.limit)
            ]
            if not able:
                return gave
            held = max(able, key=lambda each: each.wanted.priority)
            self.hand_out(held, held.limit - len(held.held) if held.limit else len(self.ready))
            if held in self.consumers:
                self.consumers.remove(held)
                self.consumers.append(held)
            gave = True
        return gave

    def left(self, held: MemoryHeld) -> None:
        if held in self.consumers:
            self.consumers.remove(held)
            if not self.consumers and self.record.auto_delete:
                self.broker.apply([QueueUnused(self.record.vhost, self.record.name)])


@dataclass
class MemoryBroker:
    """See ``ports.Broker``. ``slow``: answers wait for ``release`` instead of coming at once."""

    limits: AmqpLimits = field(default_factory=AmqpLimits)

    def __post_init__(self) -> None:
        self.topology = Topology()
        for name in ("/", "other"):
            self.topology.apply(AddVhost(Vhost(name)))
        self.queues: dict[tuple[str, str], MemoryQueue] = {}
        self.later: list[Callable[[], None]] = []
        self.held_back: list[Callable[[], None]] = []
        self.slow = False
        self.time = 1000.0
        self.names = 0
        self.users = {"guest": b"guest", "bob": b"bob", "eve": b"eve"}
        self.grants: dict[tuple[str, str], Permissions] = {}
        for vhost in ("/", "other"):
            self.grant("guest", VhostPermission(vhost, ".*", ".*", ".*"))
        self.grant(
            "bob",
            VhostPermission("/", "^b", "^b", "^b"),
            (TopicPermission("/", "bt", "^ok", "^ok"),),
        )
        self.connection_limit: int | None = None
        self.entered: list[Client] = []
        self.replies: dict[str, ConsumerPort] = {}
        self.schedules: dict[Client, float] = {}
        self.closed: list[tuple[str, str]] = []
        self.errors: list[tuple[int, str]] = []
        self.drops: list[tuple[str, int]] = []
        self.paused: list[Connection] = []
        self.tally = Tally()
        self.parser = AmqpParser(1 << 20)
        self.handler = Handler(self)

    def grant(
        self, user: str, permission: VhostPermission, topics: tuple[TopicPermission, ...] = ()
    ) -> None:
        self.grants[user, permission.vhost] = Permissions(user, permission, topics)

    # Time

    def now(self) -> float:
        return self.time

    def now_us(self) -> int:
        return int(self.time * 1_000_000)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with every timer that is due on the way."""
        end = self.time + seconds
        while True:
            due = [(at, client) for client, at in self.schedules.items() if at <= end]
            if not due:
                break
            at, client = min(due, key=lambda item: item[0])
            self.time = max(self.time, at)
            del self.schedules[client]
            self.handler.due(client)
        self.time = end

    def schedule(self, client: Client, at: float) -> None:
        self.schedules[client] = at

    def mark(self) -> None:
        pass

    def answer(self, do: Callable[[], None]) -> None:
        if self.slow:
            self.held_back.append(do)
        else:
            do()

    def release(self) -> None:
        """Give the answers that were held back."""
        held, self.held_back = self.held_back, []
        for do in held:
            do()

    def tick(self) -> None:
        """All that a shard does until nothing is left to do."""
        busy = True
        while busy:
            self.handler.flush_marked()
            later, self.later = self.later, []
            for do in later:
                do()
            gave = [queue.dispatch() for queue in list(self.queues.values())]
            busy = any(gave)
            busy = busy or bool(self.later or self.handler.marked)

    # Connecting

    def unique(self) -> str:
        self.names += 1
        return f"{self.names:022d}"

    def authenticate(
        self,
        client: Client,
        mechanism: str,
        user: str,
        password: bytes,
        done: Callable[[Authenticated], None],
    ) -> None:
        if mechanism == "EXTERNAL":
            result = Authenticated(client.certificate_name)
        else:
            result = Authenticated(user if self.users.get(user) == password else None)
        self.answer(lambda: done(result))

    def update_secret(
        self, client: Client, secret: bytes, done: Callable[[Authenticated], None]
    ) -> None:
        held = secret == self.users[client.user]
        self.answer(lambda: done(Authenticated(client.user if held else None)))

    def permissions(self, user: str, vhost: str) -> Permissions | None:
        return self.grants.get((user, vhost))

    def enter(self, client: Client) -> int | None:
        if self.connection_limit is not None and len(self.entered) >= self.connection_limit:
            return self.connection_limit
        self.entered.append(client)
        return None

    # Topology

    def apply(self, changes: Sequence[Change]) -> None:
        self.topology.apply_all(changes)
        known = {queue.key: queue for queue in self.topology.queues()}
        for key, queue in known.items():
            if key not in self.queues:
                self.queues[key] = MemoryQueue(self, queue)  # type: ignore[index]
        for key in [key for key in self.queues if key not in known]:
            queue_gone = self.queues.pop(key)
            for held in list(queue_gone.attached):
                assert held.port is not None
                held.port.cancelled()

    def change(self, changes: Sequence[Change], done: Callable[[Refusal | None], None]) -> None:
        def do() -> None:
            try:
                self.apply(changes)
            except Refusal as refusal:
                done(refusal)
                return
            done(None)

        self.answer(do)

    def group_for(self, queue_name: str, durable: bool, exclusive: bool, queue_type: str) -> str:
        return "memory"

    def queue(self, record: Queue) -> MemoryQueue | None:
        return self.queues.get((record.vhost, record.name))

    def queue_status(self, queue: Queue, done: Callable[[QueueStatus | None], None]) -> None:
        def do() -> None:
            found = self.queue(queue)
            done(None if found is None else QueueStatus(len(found.ready), len(found.consumers)))

        self.answer(do)

    def purge(self, queue: Queue, done: Callable[[int | Refusal], None]) -> None:
        def do() -> None:
            found = self.queue(queue)
            assert found is not None
            count = len(found.ready)
            for offset in found.ready:
                del found.messages[offset]
            found.ready.clear()
            done(count)

        self.answer(do)

    def delete(
        self,
        queue: Queue,
        if_unused: bool,
        if_empty: bool,
        done: Callable[[int | Refusal], None],
    ) -> None:
        found = self.queue(queue)
        assert found is not None
        if if_unused and found.consumers:
            done(refusals.in_use(queue))
        elif if_empty and found.ready:
            done(refusals.not_empty(queue))
        else:
            count = len(found.ready)
            self.change(
                [DeleteQueue(queue.vhost, queue.name)], lambda refusal: done(refusal or count)
            )

    # Messages

    def publish(
        self,
        channel: Channel,
        run: PublishRun,
        exchange: Exchange,
        block: bytes,
        keys: Sequence[str],
        headers: Mapping[str, object] | None,
        confirmation: Confirming | None,
        expiry_ms: int | None,
        properties: Mapping[str, object] | None = None,
    ) -> int:
        reached: dict[tuple[str, str], MemoryQueue] = {}
        for key in keys:
            routed = route(self.topology, exchange.vhost, exchange.name, key, headers, properties)
            for record in routed.queues:
                reached[record.vhost, record.name] = self.queues[record.vhost, record.name]
        for queue in reached.values():
            reason = REFUSED if queue.full(run.count) else 0
            if not reason:
                for data in build_amqp_batches(run, keys[0].encode(), block, self.now_us()):
                    queue.append(data)
            if confirmation is not None:
                confirmation.hold()
                self.later.append(lambda reason=reason: confirmation.done(reason))  # type: ignore[misc]
        return len(reached)

    def consume(
        self, wanted: ConsumerWanted, port: ConsumerPort, done: Callable[[Held | Refusal], None]
    ) -> None:
        def do() -> None:
            queue = self.queue(wanted.queue)
            if queue is None:
                done(refusals.queue_gone(wanted.queue))
                return
            if not wanted.taking and (
                (wanted.exclusive and queue.consumers)
                or any(held.wanted.exclusive for held in queue.consumers)
            ):
                done(refusals.exclusive_use(wanted.queue))
                return
            held = MemoryHeld(queue, wanted, port)
            queue.attached.append(held)
            if not wanted.taking:
                queue.consumers.append(held)
            done(held)

        self.answer(do)

    def reply_open(self, port: ConsumerPort) -> str:
        address = self.unique()
        self.replies[address] = port
        return address

    def reply_close(self, address: str) -> None:
        del self.replies[address]

    def reply(self, address: str, run: PublishRun, block: bytes) -> bool:
        port = self.replies.get(address)
        if port is None:
            return False
        for data in build_amqp_batches(run, run.routing_key, block, self.now_us()):
            batch = parse(data)
            port.deliver(batch, 0, batch.count, 1)
        return True

    def reply_exists(self, address: str, done: Callable[[bool], None]) -> None:
        self.answer(lambda: done(address in self.replies))

    # Connections

    def pause(self, connection: Connection) -> None:
        self.paused.append(connection)
        connection.paused |= 2

    def resume(self, connection: Connection) -> None:
        self.paused.remove(connection)
        connection.paused &= ~2
        if not connection.paused and not connection.closing and connection.tail is not None:
            tail, connection.tail = bytearray(connection.tail), None
            self.parser.process(connection, tail, len(tail))

    def close(self, connection: Connection, linger: bool) -> None:
        connection.closing = True
        if connection in self.paused:
            self.paused.remove(connection)

    def count_opened(self, client: Client) -> None:
        pass

    def count_closed(self, client: Client, reason: str) -> None:
        self.closed.append((client.peer, reason))
        if client.entered:
            self.entered.remove(client)

    def count_error(self, client: Client, code: int, text: str) -> None:
        self.errors.append((code, text))

    def count_drop(self, reason: str, count: int) -> None:
        self.drops.append((reason, count))

    def count_method(self, name: str) -> None:
        pass


class Message(NamedTuple):
    """A method that came with content."""

    method: Method
    properties: Properties
    body: bytes


class Peer:
    """A client on a connection to the sessions of a broker. ``opened``: with the greeting done, and channel 1."""

    def __init__(
        self,
        broker: MemoryBroker,
        opened: bool = True,
        user: str = "guest",
        vhost: str = "/",
        capabilities: Sequence[str] = (),
        limit: int = 1 << 20,
        heartbeat: int = 0,
        frame_max: int = 131_072,
        channel_max: int = 2047,
    ) -> None:
        self.broker = broker
        self.connection = Connection(0, broker.tally, [], limit)
        self.connection.wire = 1
        self.connection.handler = broker.handler  # type: ignore[assignment]
        self.connection.active = broker.time
        broker.names += 1
        self.client = Client(
            self.connection,
            f"127.0.0.1:{broker.names}",
            "127.0.0.1:5672",
            0,
            f"owner-{broker.names}",
        )
        self.connection.identity = self.client
        self.received = b""
        if opened:
            table = {"capabilities": dict.fromkeys(capabilities, True)}
            self.raw(PROTOCOL_HEADER)
            response = f"\0{user}\0".encode() + broker.users[user]
            self.send(0, ConnectionStartOk(table, "PLAIN", response, "en_US"))
            self.send(0, ConnectionTuneOk(channel_max, frame_max, heartbeat))
            self.send(0, ConnectionOpen(vhost))
            self.send(1, ChannelOpen())
            self.receive()

    def raw(self, data: bytes) -> None:
        """Bytes come from the client; what was incomplete before stands in front of them."""
        connection = self.connection
        if connection.closing:
            return
        kept, connection.tail = connection.tail or b"", None
        if connection.gathering is not None:
            kept = bytes(connection.gathering[: connection.gathered])
            connection.gathering = None
        connection.active = self.broker.time
        if connection.paused:
            connection.tail = kept + data
            return
        self.broker.parser.process(connection, bytearray(kept + data), len(kept + data))

    def send(self, channel: int, *methods: Method) -> None:
        """Methods, in one reading."""
        self.raw(b"".join(frame(channel, method) for method in methods))

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes = b"x",
        channel: int = 1,
        mandatory: bool = False,
        immediate: bool = False,
        frame_max: int = 131_072,
        **properties: Any,
    ) -> None:
        """One message."""
        method = BasicPublish(exchange, routing_key, mandatory, immediate)
        content = encode_properties(Properties(**properties))
        self.raw(
            frame(channel, method) + b"".join(frames_of_content(channel, content, body, frame_max))
        )

    def tick(self) -> None:
        self.broker.tick()

    def receive(self, tick: bool = True) -> list[tuple[int, Method | Message]]:
        """What the client got since the last time."""
        if tick:
            self.broker.tick()
        connection = self.connection
        chunks = [*(connection.chunks or ()), *([connection.out] if connection.out else ())]
        data = self.received + b"".join(bytes(chunk) for chunk in chunks)
        connection.chunks = connection.out = None
        connection.size = 0
        if connection.feeding and not connection.closing:
            connection.handler.drained(connection)  # type: ignore[union-attr]
        found: list[tuple[int, Method | Message]] = []
        content: dict[int, tuple[Method, int, bytes, bytearray]] = {}
        at = 0
        if data.startswith(b"AMQP"):
            assert data == PROTOCOL_HEADER
            return []
        while at < len(data):
            kind, channel, size = struct.unpack_from(">BHI", data, at)
            payload = data[at + 7 : at + 7 + size]
            assert data[at + 7 + size] == 0xCE
            assert size + 8 <= max(self.client.frame_max, 4096)
            at += size + 8
            if kind == FRAME_METHOD:
                assert channel not in content, "content is whole"
                method = decode(payload)
                if type(method).__name__ in ("BasicDeliver", "BasicGetOk", "BasicReturn"):
                    content[channel] = (method, -1, b"", bytearray())
                else:
                    found.append((channel, method))
                continue
            if kind not in (FRAME_HEADER, FRAME_BODY):
                assert (kind, channel, size) == (8, 0, 0), "a heartbeat"
                continue
            method, wanted, properties, body = content[channel]
            if kind == FRAME_HEADER:
                wanted, properties = split_header(payload)
            else:
                body += payload
            content[channel] = (method, wanted, properties, body)
            if len(body) == wanted:
                del content[channel]
                found.append((channel, Message(method, decode_properties(properties), bytes(body))))
        assert not content, "content is whole"
        return found

    def got(self, channel: int = 1) -> list[Method | Message]:
        """What came on one channel; nothing may have come on others."""
        received = self.receive()
        assert all(number == channel for number, _ in received), received
        return [item for _, item in received]

    def one(self, channel: int = 1) -> Method | Message:
        """The one thing that came."""
        received = self.got(channel)
        assert len(received) == 1, received
        return received[0]

    def bodies(self, channel: int = 1) -> list[bytes]:
        """Bodies of the deliveries that came."""
        received = self.got(channel)
        assert all(isinstance(item, Message) for item in received), received
        return [item.body for item in received if isinstance(item, Message)]
