"""What AMQP 0.9.1 sessions need of the broker around them; the shard implements it.

Owned here, because the consumer of an interface knows what it must say. Every method answers at once; what takes time
takes a callback, which is called on the shard's loop, possibly before the method returns, and exactly once unless the
connection is closed first (then it may be left out).

What the shard calls is ``handler.Handler``. A new connection: make a ``client.Client``, set ``connection.identity`` to it
and ``connection.handler`` to the handler; the parser hands over the protocol header and then frames and runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fluxmq._hot.amqp_run import PublishRun
    from fluxmq._hot.batches import Batch
    from fluxmq._hot.connection import Connection
    from fluxmq.auth.permissions import Permissions
    from fluxmq.queues.commands import Verb
    from fluxmq.routing.topology.changes import Change
    from fluxmq.routing.topology.records import Exchange, Queue
    from fluxmq.routing.topology.refusals import Refusal
    from fluxmq.routing.topology.topology import Topology
    from fluxmq.sessions.amqp091.channel import Channel
    from fluxmq.sessions.amqp091.client import Client

Range = tuple[int, int]
"""First and last offset, both inside."""

Answer = Callable[[int], object]
"""Called with 0 when what was asked for is durable, else with a reason of 0x80 or more."""


@dataclass(slots=True)
class AmqpLimits:
    """The settings that sessions obey; sizes in bytes, times in seconds.

    ``frame_max`` and ``channel_max`` are offered in connection.tune, so is ``heartbeat`` (0: none unless the client
    wants some). ``handshake_timeout``: from the header to connection.open. ``close_timeout``: how long connection.close-ok
    is waited for. ``max_transaction_...``: what one channel's transaction may hold until it is committed;
    ``max_incomplete_bytes``: what all channels of a connection hold together, incomplete messages included. ``product`` and its
    version are announced in connection.start.
    """

    frame_max: int = 131_072
    channel_max: int = 2047
    heartbeat: int = 60
    max_message: int = 134_217_728
    handshake_timeout: float = 10.0
    close_timeout: float = 10.0
    max_consumers: int = 10_000
    max_transaction_bytes: int = 64 << 20
    max_transaction_messages: int = 100_000
    max_incomplete_bytes: int = 128 << 20
    node_name: str = "fluxmq@localhost"
    product: str = "RabbitMQ"
    product_version: str = "3.10.8"


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The outcome of checking credentials: the user's name, None when they do not hold, or, with ``again``, when they
    could not be checked now."""

    user: str | None
    again: bool = False


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """What queue.declare-ok tells. A queue that cannot be asked now has none (``done`` gets None)."""

    ready: int
    consumers: int


@dataclass(frozen=True, slots=True)
class ConsumerWanted:
    """A consumer as basic.consume, or basic.get for its own ends, asks for it.

    ``limit``: most unsettled messages it is given, 0: as many as queues allow. ``group``: group to consume in, empty for the queue's own
    competing consumers; of a stream its name or, made for this consumer only, empty. ``start``: where a stream's consumer
    begins: ("first" | "last" | "next", 0), ("offset", n), ("timestamp", µs), ("interval", µs back from now); None is
    "next". ``taking``: nothing is given but what ``Held.take`` asks for; it counts as no consumer. ``automatic``: with
    ``taking`` only: what is taken is settled by that. ``auto_commit``: acknowledging moves a stream's named group on.
    ``priority``: higher ones are given messages first. ``timeout``: µs after which what is unsettled is released, 0:
    what the queue says. ``asker``: id of the connection, which an exclusive queue compares with its owner.
    """

    queue: Queue
    tag: str
    member: str
    limit: int
    group: str = ""
    priority: int = 0
    exclusive: bool = False
    taking: bool = False
    automatic: bool = False
    auto_commit: bool = True
    start: tuple[str, int] | None = None
    filters: tuple[str, ...] = ()
    timeout: int = 0
    asker: str = ""


class ConsumerPort(Protocol):
    """Where messages for one consumer go. Called at most with what the consumer's limit allows."""

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """``count`` messages of ``batch`` from index ``first``; ``attempts`` counts this delivery."""

    def cancelled(self) -> None:
        """The queue, or the host, has gone: nothing comes any more, nothing can be settled."""


class Held(Protocol):
    """A consumer that is attached, from the side of who asked for it."""

    def settle(
        self, verb: Verb, ranges: Sequence[Range], delay: int, reason: bytes, done: Answer | None
    ) -> None:
        """Settle messages. ``delay``: µs before a nacked one comes again, -1: the queue's back-off."""

    def set_limit(self, limit: int) -> None:
        """At most so many unsettled messages from now on, 0: as many as queues allow."""

    def take(self, done: Callable[[bool, int], None]) -> None:
        """One message now. It is delivered through the port before ``done`` gets True and how many are still ready;
        False and 0 when there is none."""

    def stop(self) -> None:
        """Give nothing more, count as a consumer no longer; what is held stays with it until settled or detached."""

    def detach(self) -> None:
        """Go; what is held is released."""


class Confirming(Protocol):
    """Whose publish waits to be safe. Each ``hold`` is followed by one ``done``."""

    def hold(self) -> object:
        """One more has to say ``done``."""

    def done(self, reason: int = 0, /) -> object:
        """0: safe. 0x80 or more: refused, and the publisher is told that."""


class Broker(Protocol):
    """The shard, as sessions see it."""

    topology: Topology
    """The shard's copy."""
    limits: AmqpLimits

    def now(self) -> float:
        """Monotonic seconds at the start of this tick."""

    def now_us(self) -> int:
        """Microseconds since the epoch."""

    def unique(self) -> str:
        """22 characters of URL-safe base64 that nobody else gets: for names made here."""

    # Connecting

    def authenticate(
        self,
        client: Client,
        mechanism: str,
        user: str,
        password: bytes,
        done: Callable[[Authenticated], None],
    ) -> None:
        """Check a name and a password, for EXTERNAL the certificate (``user`` is what it asks for, or empty)."""

    def permissions(self, user: str, vhost: str) -> Permissions | None:
        """What a user may do now; None: no access to the vhost. Cheap, and the same object while nothing changes."""

    def enter(self, client: Client) -> int | None:
        """Count an authenticated connection into ``client.vhost``; the vhost's limit of connections when it is reached.

        ``count_closed`` takes it out again, if it was entered.
        """

    # Topology

    def change(self, changes: Sequence[Change], done: Callable[[Refusal | None], None]) -> None:
        """Change the topology. When ``done`` gets None, every shard knows it."""

    def group_for(
        self,
        queue_name: str,
        durable: bool,
        exclusive: bool,
        queue_type: str,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The replication group of a queue that is being declared on this shard. Raises `Refusal` for one there is none of."""

    def queue_status(self, queue: Queue, done: Callable[[QueueStatus | None], None]) -> None:
        """Ready messages and consumers of a queue. Counts as use of it."""

    def purge(self, queue: Queue, done: Callable[[int | Refusal], None]) -> None:
        """Remove the ready messages; ``done`` gets their number."""

    def delete(
        self,
        queue: Queue,
        if_unused: bool,
        if_empty: bool,
        done: Callable[[int | Refusal], None],
    ) -> None:
        """Delete a queue, its topology and its messages; ``done`` gets their number, or Refusal 406."""

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
        identity: tuple[int, int] | None = None,
    ) -> int:
        """Route a run and store it; to how many queues and subscribers it went.

        ``keys``: the routing keys, the message's own first (CC and BCC are the others); a queue that several lead to
        gets it once. ``headers`` and ``properties`` (correlation_id, message_id, timestamp) are what exchanges look at. ``identity``: producer and sequence of
        the message, where it says them; a queue that has had it keeps it no second time. The run lies in the receive buffer: what is kept longer than this call is to be copied. Who makes the answer wait calls ``confirmation.hold`` within the call.
        """

    def may_refuse(
        self,
        exchange: Exchange,
        keys: Sequence[str],
        headers: Mapping[str, object] | None,
        properties: Mapping[str, object] | None = None,
    ) -> bool:
        """Whether a queue that messages so routed reach may take some of a run and refuse others."""

    def consume(
        self,
        wanted: ConsumerWanted,
        port: ConsumerPort,
        done: Callable[[Held | Refusal], None],
    ) -> None:
        """Attach a consumer, or say why not (403 exclusive use, 404 queue gone). May deliver once ``done`` was called."""

    def reply_open(self, port: ConsumerPort) -> str:
        """A new address for direct replies: what follows ``amq.rabbitmq.reply-to.``, known to every shard by itself."""

    def reply_close(self, address: str) -> None:
        """The address is used no longer."""

    def reply(self, address: str, run: PublishRun, block: bytes) -> bool:
        """Send a run to the port behind an address; False: there is none as far as is known here."""

    def reply_exists(self, address: str, done: Callable[[bool], None]) -> None:
        """Whether somebody waits for replies at an address."""

    # Connections

    def schedule(self, client: Client, at: float) -> None:
        """Call the handler's ``due`` at this monotonic time or soon after; a later call replaces an earlier one."""

    def mark(self) -> None:
        """Something is to be flushed: call the handler's ``flush_marked`` before this tick ends, or in the next one."""

    def pause(self, connection: Connection) -> None:
        """Stop reading."""

    def resume(self, connection: Connection) -> None:
        """Go on reading."""

    def hold_publisher(self, connection: Connection) -> None:
        """Stop reading a connection that publishes, until the node is no longer short of anything."""

    def release_publisher(self, connection: Connection) -> None:
        """Read a connection whatever it has published and whatever the node is short of: it is closing."""

    @property
    def short_of_memory(self) -> bool:
        """Whether nothing new may be begun for clients: connections, publishes in transactions."""

    def refused_for_memory(self, what: str) -> None:
        """Count what was refused for want of memory: a "connection", a "transaction", what exceeds the "budget" or was "incomplete"."""

    def close(self, connection: Connection, linger: bool) -> None:
        """Close once output is written; ``linger``: let the client read it before the socket goes."""

    def count_opened(self, client: Client) -> None:
        """Count a connection that came as far as connection.open-ok."""

    def count_closed(self, client: Client, reason: str) -> None:
        """Count the end of a connection."""

    def count_error(self, client: Client, code: int, text: str) -> None:
        """Count a protocol error and log it at a bounded rate."""

    def count_drop(self, reason: str, count: int) -> None:
        """Count messages not delivered."""

    def count_method(self, name: str) -> None:
        """Count a method received off the hot path."""
