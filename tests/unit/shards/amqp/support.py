"""Nodes whose shards serve AMQP, on queues that outlive them, with a control process in this one."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]

from fluxmq.auth.credentials import HashParameters, hash_password
from fluxmq.auth.users import User, VhostPermission
from fluxmq.ipc import handoff
from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import ERROR_AWAY, Body, Failure
from fluxmq.ipc.topology_messages import (
    FROM_NOTHING,
    TOPOLOGY,
    TOPOLOGY_CHANGE,
    TopologyChanged,
    parts,
    read_sets,
)
from fluxmq.protocols.amqp091.confirms import Confirmation, ConfirmWindow
from fluxmq.protocols.amqp091.content import BasicProperties, encode_properties
from fluxmq.protocols.amqp091.message_properties import to_block
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.routing.topology.changes import AddVhost, Bind, Change, DeclareExchange, DeclareQueue
from fluxmq.routing.topology.names import internal_name
from fluxmq.routing.topology.records import Binding, Exchange, QueueRecord, Vhost
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Topology, TopologyRow
from fluxmq.sessions.amqp091.ports import ConsumeRequest, Routing
from fluxmq.shards.amqp.wiring import Amqp
from fluxmq.shards.intake import AMQP
from tests.broker import merged
from tests.differential import wire
from tests.unit.engine.support import QueueNode
from tests.unit.shards.node import Clock, Shard

PEER = "127.0.0.1:50001"
PASSWORD = "secret"
EVERYTHING = VhostPermission("/", ".*", ".*", ".*")
SETTINGS = {
    "auth": {"argon2": {"time_cost": 1, "memory_cost": 8192}, "verify_threads": 1},
    "server": {"amqp": {"tcp": {"addr": "127.0.0.1:5672"}}},
}


def user(name: str = "anna", *permissions: VhostPermission) -> User:
    """A user with this password, who may do everything in the first vhost unless told otherwise."""
    hashed = hash_password(PASSWORD, b"s" * 16, HashParameters(1, 8, 1))
    return User(name, hashed, None, (), (), True, permissions=permissions or (EVERYTHING,))


def _travelled(body: Any) -> Any:
    return msgpack.unpackb(msgpack.packb(body))


class ControlProcess:
    """Decides about the topology and tells all shards, at once or with `held` when told."""

    def __init__(self) -> None:
        self.topology = Topology()
        self.topology.apply(AddVhost(Vhost("/")))
        self.held = False
        self.away = False
        self._shards: dict[int, Amqp] = {}
        self._asked: deque[tuple[Body, Answered]] = deque()

    def join(self, index: int, amqp: Amqp) -> None:
        """A shard says hello."""
        self._shards[index] = amqp
        self._tell(amqp, FROM_NOTHING, self.topology.snapshot().rows)

    def leave(self, index: int) -> None:
        """A shard is gone."""
        self._shards.pop(index, None)

    def request(self, kind: str, body: Body, answered: Answered) -> bool:
        """A shard asks for changes."""
        assert kind == TOPOLOGY_CHANGE
        if self.away:
            return False
        self._asked.append((_travelled(body), answered))
        if not self.held:
            self.work()
        return True

    def die(self) -> None:
        """SIGKILL: what was asked and not answered is lost."""
        self.away = True
        asked, self._asked = self._asked, deque()
        for _, answered in asked:
            answered(Failure(ERROR_AWAY, "control is away"))

    def begin(self) -> None:
        """Control is there again, with what it had on disk."""
        self.away = False
        for amqp in self._shards.values():
            self._tell(amqp, FROM_NOTHING, self.topology.snapshot().rows)
            amqp.topology.established()

    def work(self) -> None:
        """Make the changes that were asked for, in order, and tell all shards together."""
        asked, self._asked = self._asked, deque()
        previous = self.topology.revision
        rows: list[TopologyRow] = []
        answers = []
        for body, answered in asked:
            results = [self._made(each, rows) for each in read_sets(body)]
            answers.append((answered, tuple(results)))
        if rows:
            for amqp in list(self._shards.values()):
                self._tell(amqp, previous, rows)
        for answered, refusals in answers:
            answered(_travelled(TopologyChanged(self.topology.revision, refusals).to_body()))

    def change(self, *changes: Change) -> None:
        """What an operator asks for."""
        previous = self.topology.revision
        rows: list[TopologyRow] = []
        assert self._made(changes, rows) is None
        for amqp in list(self._shards.values()):
            self._tell(amqp, previous, rows)

    def _made(self, changes: Sequence[Change] | Refusal, rows: list[TopologyRow]) -> Refusal | None:
        assert not isinstance(changes, Refusal)
        try:
            rows += self.topology.apply_all(changes).rows
        except Refusal as refusal:
            return refusal
        return None

    def _tell(self, amqp: Amqp, previous: int, rows: Sequence[TopologyRow]) -> None:
        for part in parts(previous, self.topology.revision, rows):
            answers: list[Any] = []
            amqp.topology.commands[TOPOLOGY](_travelled(part.to_body()), answers.append)
            assert not isinstance(answers[0], Failure), answers


class AmqpShard(Shard):
    """A shard that a control process tells the topology."""

    def __init__(self, node: AmqpNode, index: int, epoch: int) -> None:
        super().__init__(node, index, epoch)
        self.permissions.set_users(2, node.people)
        node.control.join(index, self.amqp)
        self.amqp.topology.connect(node.control)

    def timer(self) -> None:
        """What the worker does ten times a second."""
        super().timer()
        self.amqp.housekeeping()


class AmqpNode(QueueNode):
    """A node whose shards serve AMQP."""

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        settings: dict[str, Any],
        workers: int = 1,
        people: tuple[User, ...] = (),
    ) -> None:
        self.control = ControlProcess()
        self.people = people
        self._sockets: list[socket.socket] = []
        super().__init__(directory, clock, loop, merged(SETTINGS, settings), workers)

    def start(self, index: int) -> Shard:
        """Start a shard, new or again."""
        assert self.shards[index] is None
        shard = self.shards[index] = AmqpShard(self, index, next(self._epochs))
        return shard

    def kill(self, index: int) -> None:
        """SIGKILL."""
        self.control.leave(index)
        super().kill(index)

    def close(self) -> None:
        """End everything."""
        for sock in self._sockets:
            sock.close()
        super().close()

    def amqp(self, index: int = 0) -> Amqp:
        """A shard's AMQP part."""
        shard = self[index]
        assert isinstance(shard, AmqpShard)
        return shard.amqp

    # What clients ask for

    def change(self, *changes: Change, shard: int = 0) -> Refusal | None:
        """Have changes made by a shard, and the answer."""
        answers: list[Refusal | None] = []
        self.amqp(shard).broker.change(changes, answers.append)
        self.settle()
        (answer,) = answers
        return answer

    def settle(self) -> None:
        """Run until nothing is left to do, also a little later."""
        self.run()
        self.advance(0.2)

    def exchange(self, name: str, kind: str = "direct", **values: Any) -> None:
        """Declare an exchange."""
        assert self.change(DeclareExchange(Exchange("/", name, kind, **values))) is None

    def queue(
        self, name: str, shard: int = 0, vhost: str = "/", durable: bool = True, **values: Any
    ) -> QueueRecord:
        """Declare a queue."""
        wanted = QueueRecord(vhost, name, durable=durable, **values)
        wanted = replace(wanted, group=self.amqp(shard).broker.group_for(wanted))
        assert self.change(DeclareQueue(wanted), shard=shard) is None
        return wanted

    def bind(self, source: str, queue: str, key: str = "", **arguments: Any) -> None:
        """Bind a queue."""
        binding = Binding("/", source, queue, routing_key=key, arguments=arguments)
        assert self.change(Bind(binding)) is None

    def delete(self, queue: QueueRecord, shard: int = 0, if_unused: bool = False) -> int | Refusal:
        """Delete a queue as a client does."""
        answers: list[int | Refusal] = []
        self.amqp(shard).broker.delete(queue, if_unused, False, answers.append)
        self.settle()
        (answer,) = answers
        return answer

    def engine(self, name: str, vhost: str = "/") -> Any:
        """What the engine of whatever shard holds of a queue; None when none does."""
        internal = internal_name(vhost, name)
        for shard in self:
            for group in shard.queues.service.all_groups():
                state = group.machine.queue(internal)
                if state is not None:
                    return state
        return None

    def hosts(self, name: str) -> int:
        """The shard that hosts a queue."""
        for shard in self:
            for group in shard.queues.service.all_groups():
                if group.machine.queue(name) is not None:
                    return shard.index
        raise AssertionError(f"no shard has {name}")


class Publisher:
    """A confirming channel of one shard, without a connection."""

    def __init__(self, node: AmqpNode, shard: int = 0) -> None:
        self.node = node
        self.shard = shard
        self.window = ConfirmWindow()
        self._marks = itertools.count()

    def publish(
        self,
        exchange: str,
        key: str,
        *payloads: bytes,
        headers: dict[str, Any] | None = None,
        expiry_ms: int | None = None,
        also: Sequence[str] = (),
        identity: tuple[int, int] | None = None,
    ) -> int:
        """Publish messages, each a run of its own; to how many queues and subscribers the last went."""
        amqp = self.node.amqp(self.shard)
        found = amqp.topology.topology.exchange("/", exchange)
        assert found is not None
        properties = encode_properties(BasicProperties(headers=headers))
        routed = 0
        for payload in payloads:
            first = self.window.publish(1)
            confirmation = Confirmation(self.window, first, 1, lambda: next(self._marks))
            confirmation.hold()
            run = AmqpPublishRun.of(
                1, exchange.encode(), key.encode(), False, False, properties, payload
            )
            block = to_block(properties, exchange, "anna")
            routing = Routing(found, block, [key, *also], headers, None, expiry_ms, identity)
            routed = amqp.broker._publishing.publish(run, routing, confirmation)
            confirmation.done(0)
        return routed

    def answers(self) -> list[tuple[str, int, bool]]:
        """The confirms that are due: ack or nack, tag, multiple."""
        self.node.run()
        data = self.window.answers(1)
        found = []
        while data:
            size = int.from_bytes(data[3:7], "big")
            said = wire.read_method(data[7 : 7 + size])
            fields = said.fields
            found.append((said.name, fields["delivery_tag"], fields["multiple"]))
            data = data[8 + size :]
        return found


class Consumer:
    """A consumer as a channel attaches it."""

    def __init__(self, node: AmqpNode, queue: QueueRecord, shard: int = 0, **values: Any) -> None:
        self.node = node
        self.payloads: list[bytes] = []
        self.cancellations = 0
        self.answers: list[Any] = []
        values.setdefault("asker", queue.owner or "some connection")
        wanted = ConsumeRequest(queue, "tag", "member", 1000, **values)
        node.amqp(shard).broker.consume(wanted, self, self.answers.append)
        node.run()

    def deliver(
        self, batch: Any, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Messages come."""
        self.payloads += [batch.payload(index) for index in range(first, first + count)]

    def cancelled(self) -> None:
        """The queue has gone."""
        self.cancellations += 1

    def leave(self) -> None:
        """Detach."""
        self.answers[0].detach()
        self.node.settle()


def contents(node: AmqpNode, queue: QueueRecord, shard: int = 0) -> list[bytes]:
    """What is ready in a queue; it stays there."""
    node.settle()
    consumer = Consumer(node, queue, shard)
    found = list(consumer.payloads)
    consumer.leave()
    return found


class AmqpClient:
    """A connection to one shard, speaking the differential tests' own codec."""

    def __init__(
        self,
        node: AmqpNode,
        shard: int = 0,
        name: str = "anna",
        vhost: str = "/",
        heartbeat: int = 0,
        capabilities: Sequence[str] = (),
    ) -> None:
        self.node = node
        self.shard = shard
        self.closed = False
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._sock = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
        node._sockets.append(self._sock)
        theirs.setblocking(False)
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with theirs:
            handed = handoff.Handoff(theirs.fileno(), AMQP, PEER, wire.PROTOCOL_HEADER)
            assert handoff.send(node[shard].acceptor, [handed]) == 1
        assert [each.name for each in self.read()] == ["connection.start"]
        response = f"\0{name}\0{PASSWORD}"
        told = {"capabilities": {"connection.blocked": True, **dict.fromkeys(capabilities, True)}}
        self.send(
            0,
            "connection.start-ok",
            client_properties=told,
            mechanism="PLAIN",
            response=response,
            locale="en_US",
        )
        self.verified()
        assert [each.name for each in self.read()] == ["connection.tune"]
        self.send(0, "connection.tune-ok", channel_max=10, frame_max=131_072, heartbeat=heartbeat)
        self.send(0, "connection.open", virtual_host=vhost)
        answers = self.read()
        assert [each.name for each in answers] == ["connection.open-ok"], answers

    def verified(self) -> None:
        """Let the password be verified, which happens in a thread."""
        self.node.run()
        pool = self.node[self.shard].authentication._verifications.pool
        assert pool is not None
        pool.submit(int).result()
        self.node.loop.run_until_complete(asyncio.sleep(0))
        self.node.loop.run_until_complete(asyncio.sleep(0))

    def send(self, channel: int, name: str, **fields: Any) -> None:
        """Send a method."""
        self._sock.sendall(wire.method(channel, name, fields))
        self.node.run()

    def publish(
        self,
        channel: int,
        exchange: str,
        key: str,
        body: bytes,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Send a message."""
        method = wire.method(channel, "basic.publish", {"exchange": exchange, "routing_key": key})
        self._sock.sendall(method + wire.content(channel, properties or {}, body, 131_072))
        self.node.run()

    def read(self) -> list[wire.Method]:
        """The methods that have come."""
        self.node.run()
        data = b""
        try:
            while chunk := self._sock.recv(65_536):
                data += chunk
            self.closed = True
        except BlockingIOError:
            pass
        found = []
        while data:
            size = int.from_bytes(data[3:7], "big")
            if data[0] == wire.METHOD:
                found.append(wire.read_method(data[7 : 7 + size]))
            data = data[8 + size :]
        return found


__all__ = [
    "AmqpClient",
    "AmqpNode",
    "Consumer",
    "ControlProcess",
    "Publisher",
    "contents",
    "user",
]
