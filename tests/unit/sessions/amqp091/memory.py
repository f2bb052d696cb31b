"""A broker in memory that keeps the port's promises.

The topology and routing are the real ones; queues are lists of messages with who holds them. Everything that a shard does
later (durable answers, dispatch) happens in ``MemoryBroker.tick``. ``Peer``, the client that
goes with it, can be imported from here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from fluxmq.auth.logins import AuthResult, BackendLogin, LoginOutcome
from fluxmq.auth.permissions import Permissions
from fluxmq.auth.users import TopicPermission, VhostPermission
from fluxmq.model.batch_format import parse
from fluxmq.protocols.amqp091.parser import AmqpParser
from fluxmq.protocols.amqp091.run import AmqpPublishRun, build_amqp_batches
from fluxmq.protocols.connection import Connection, Tally
from fluxmq.routing.topology.changes import AddVhost, Change, DeleteQueue
from fluxmq.routing.topology.effective import effective
from fluxmq.routing.topology.records import QueueRecord, Vhost
from fluxmq.routing.topology.routing import route
from fluxmq.routing.topology.topology import Refusal, Topology
from fluxmq.sessions.amqp091 import refusals
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp091.handler import AmqpConnectionHandler
from fluxmq.sessions.amqp091.ports import (
    AmqpConsumerHandle,
    AmqpConsumerPort,
    AmqpLimits,
    ChannelEventPort,
    ChannelLimitPort,
    ConsumeRequest,
    PendingConfirm,
    QueueStatus,
    Routing,
)
from fluxmq.sessions.amqp10.handler import Amqp10ConnectionHandler
from fluxmq.shards.amqp.broker_messages import BrokerMessages
from fluxmq.shards.amqp.events import BrokerEvents
from fluxmq.shards.user_limits import UserLimitChecks
from tests.unit.sessions.amqp091.memory_queues import MemoryHeld, MemoryQueue
from tests.unit.sessions.amqp091.peer import Message, Peer

__all__ = ["MemoryBroker", "Message", "Peer"]

REFUSED = 0x97


@dataclass
class MemoryBroker:
    """See ``ports.Broker``. ``slow``: answers wait for ``release`` instead of coming at once."""

    limits: AmqpLimits = field(default_factory=AmqpLimits)

    def __post_init__(self) -> None:
        self.topology = Topology()
        self.user_limits: ChannelLimitPort = UserLimitChecks({})
        self.events: ChannelEventPort = BrokerEvents(BrokerMessages(), 0, "n", self.now_us)
        for name in ("/", "other"):
            self.topology.apply(AddVhost(Vhost(name)))
        self.queues: dict[tuple[str, str], MemoryQueue] = {}
        self.later: list[Callable[[], object]] = []
        self.held_back: list[Callable[[], None]] = []
        self.slow = False
        self.time = 1000.0
        self.names = 0
        self.users = {"guest": b"guest", "bob": b"bob", "eve": b"eve"}
        self.logins: dict[bytes, BackendLogin] = {}
        """Users of another backend, by what they give for a password."""
        self.grants: dict[tuple[str, str], Permissions] = {}
        for vhost in ("/", "other"):
            self.grant("guest", VhostPermission(vhost, ".*", ".*", ".*"))
        self.grant(
            "bob",
            VhostPermission("/", "^b", "^b", "^b"),
            (TopicPermission("/", "bt", "^ok", "^ok"),),
        )
        self.connection_limit: int | None = None
        self.busy = False
        self.counted: list[ConnectionInfo] = []
        self.replies: dict[str, AmqpConsumerPort] = {}
        self.schedules: dict[Connection, float] = {}
        self.closed: list[tuple[str, str]] = []
        self.errors: list[tuple[int, str]] = []
        self.drops: list[tuple[str, int]] = []
        self.paused: list[Connection] = []
        self.stopped: list[Connection] = []
        self.short_of_memory = False
        self.refused: list[str] = []
        self.tally = Tally()
        self.parser = AmqpParser(1 << 20)
        self.handler = AmqpConnectionHandler(self)
        self.amqp10 = Amqp10ConnectionHandler(
            self, self.handler.alarm, self.handler.drop_owner, 1 << 20
        )

    def grant(
        self, user: str, permission: VhostPermission, topics: tuple[TopicPermission, ...] = ()
    ) -> None:
        self.grants[user, permission.vhost] = Permissions(user, permission, topics)

    # Resources

    def hold_publisher(self, connection: Connection) -> None:
        if connection not in self.stopped:
            self.stopped.append(connection)

    def release_publisher(self, connection: Connection) -> None:
        connection.publishing = False
        if connection in self.stopped:
            self.stopped.remove(connection)

    def refused_for_memory(self, what: str) -> None:
        self.refused.append(what)

    # Time

    def now(self) -> float:
        return self.time

    def now_us(self) -> int:
        return int(self.time * 1_000_000)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with every timer that is due on the way."""
        end = self.time + seconds
        while True:
            due = [(at, connection) for connection, at in self.schedules.items() if at <= end]
            if not due:
                break
            at, connection = min(due, key=lambda item: item[0])
            self.time = max(self.time, at)
            del self.schedules[connection]
            connection.handler.due(connection)
        self.time = end

    def schedule(self, connection: Connection, at: float) -> None:
        self.schedules[connection] = at

    def mark(self) -> None:
        pass

    def answer(self, do: Callable[[], None]) -> None:
        if self.slow:
            self.held_back.append(do)
        else:
            do()

    def release(self) -> None:
        """Give the answers that were held back."""
        handle, self.held_back = self.held_back, []
        for do in handle:
            do()

    def tick(self) -> None:
        """All that a shard does until nothing is left to do."""
        busy = True
        while busy:
            self.handler.flush_marked()
            self.amqp10.flush_marked()
            later, self.later = self.later, []
            for do in later:
                do()
            gave = [queue.dispatch() for queue in list(self.queues.values())]
            busy = any(gave)
            busy = busy or bool(self.later or self.handler.marked or self.amqp10.marked)

    # Connecting

    def unique(self) -> str:
        self.names += 1
        return f"{self.names:022d}"

    def authenticate(
        self,
        client: ConnectionInfo,
        mechanism: str,
        user: str,
        password: bytes,
        done: Callable[[AuthResult], None],
    ) -> None:
        if self.busy:
            result = AuthResult(LoginOutcome.BUSY)
        elif mechanism == "EXTERNAL":
            result = AuthResult(LoginOutcome.ACCEPTED, client.certificate_name)
        elif mechanism == "ANONYMOUS":
            result = AuthResult(LoginOutcome.ACCEPTED, self.limits.anonymous_user)
        elif password in self.logins:
            login = self.logins[password]
            result = AuthResult(LoginOutcome.ACCEPTED, login.user.name, login)
        elif self.users.get(user) == password:
            result = AuthResult(LoginOutcome.ACCEPTED, user)
        else:
            result = AuthResult(LoginOutcome.WRONG)
        self.answer(lambda: done(result))

    def permissions(self, user: str, vhost: str) -> Permissions | None:
        return self.grants.get((user, vhost))

    def enter(self, client: ConnectionInfo) -> str:
        if self.connection_limit is not None and len(self.counted) >= self.connection_limit:
            return refusals.vhost_full(client.user, client.vhost, self.connection_limit)
        self.counted.append(client)
        return ""

    # Topology

    def apply(self, changes: Sequence[Change]) -> None:
        self.topology.apply_all(changes)
        known = {queue.key: queue for queue in self.topology.queues()}
        for key, queue in known.items():
            if key not in self.queues:
                self.queues[key] = MemoryQueue(self, queue)  # type: ignore[index]
        for key in [key for key in self.queues if key not in known]:
            queue_gone = self.queues.pop(key)
            for handle in list(queue_gone.attached):
                assert handle.port is not None
                handle.port.cancelled()

    def change(self, changes: Sequence[Change], done: Callable[[Refusal | None], None]) -> None:
        def do() -> None:
            try:
                self.apply(changes)
            except Refusal as refusal:
                done(refusal)
                return
            done(None)

        self.answer(do)

    def group_for(self, queue: QueueRecord) -> str:
        if queue.arguments.get("x-fluxmq-group") == "unknown":
            raise Refusal(406, "replication group 'unknown' is not supported here")
        return "memory"

    def queue(self, record: QueueRecord) -> MemoryQueue | None:
        return self.queues.get((record.vhost, record.name))

    def queue_status(
        self, queue: QueueRecord, done: Callable[[QueueStatus | Refusal | None], None]
    ) -> None:
        def do() -> None:
            found = self.queue(queue)
            done(None if found is None else QueueStatus(len(found.ready), len(found.consumers)))

        self.answer(do)

    def purge(self, queue: QueueRecord, done: Callable[[int | Refusal], None]) -> None:
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
        queue: QueueRecord,
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
        connection: Connection,
        run: AmqpPublishRun,
        routing: Routing,
        confirmation: PendingConfirm | None,
    ) -> int:
        reached: dict[tuple[str, str], MemoryQueue] = {}
        for key in routing.keys:
            for record in self.routed(routing, key):
                reached[record.vhost, record.name] = self.queues[record.vhost, record.name]
        for queue in reached.values():
            reason = REFUSED if queue.full(run.count) else 0
            if not reason:
                for data in build_amqp_batches(
                    *(run, routing.keys[0].encode(), routing.block, self.now_us(), 0, 0),
                    *(routing.identity or (0, 0)),
                ):
                    queue.append(data)
            if confirmation is not None:
                confirmation.hold()
                self.later.append(partial(confirmation.done, reason))
        return len(reached)

    def may_refuse(self, routing: Routing) -> bool:
        return any(
            effective(self.topology, queue).get("overflow", "").startswith("reject")
            for key in routing.keys
            for queue in self.routed(routing, key)
        )

    def routed(self, routing: Routing, key: str) -> Sequence[QueueRecord]:
        exchange = routing.exchange
        headers, properties = routing.headers, routing.properties
        return route(self.topology, exchange.vhost, exchange.name, key, headers, properties).queues

    def consume(
        self,
        wanted: ConsumeRequest,
        port: AmqpConsumerPort,
        done: Callable[[AmqpConsumerHandle | Refusal], None],
    ) -> None:
        def do() -> None:
            queue = self.queue(wanted.queue)
            if queue is None:
                done(refusals.queue_gone(wanted.queue))
                return
            if not (wanted.taking or wanted.browsing) and (
                (wanted.exclusive and queue.consumers)
                or any(handle.wanted.exclusive for handle in queue.consumers)
            ):
                done(refusals.exclusive_use(wanted.queue))
                return
            handle = MemoryHeld(queue, wanted, port)
            queue.attached.append(handle)
            if not (wanted.taking or wanted.browsing):
                queue.consumers.append(handle)
            done(handle)

        self.answer(do)

    def reply_open(self, port: AmqpConsumerPort) -> str:
        address = self.unique()
        self.replies[address] = port
        return address

    def reply_close(self, address: str) -> None:
        del self.replies[address]

    def reply(self, address: str, run: AmqpPublishRun, block: bytes) -> bool:
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
            parser = self.parser if connection.wire == 1 else self.amqp10.parser
            parser.process(connection, tail, len(tail))

    def close(self, connection: Connection, linger: bool) -> None:
        connection.closing = True
        if connection in self.paused:
            self.paused.remove(connection)

    def count_opened(self, client: ConnectionInfo) -> None:
        pass

    def count_closed(self, client: ConnectionInfo, reason: str) -> None:
        self.closed.append((client.peer, reason))
        if client.counted:
            self.counted.remove(client)

    def count_error(self, client: ConnectionInfo, code: int, text: str) -> None:
        self.errors.append((code, text))

    def count_drop(self, reason: str, count: int) -> None:
        self.drops.append((reason, count))

    def count_method(self, name: str) -> None:
        pass
