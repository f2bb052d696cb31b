"""The port of AMQP 0.9.1 sessions to the broker; the shard implements it.

Defined here, because the consumer of an interface knows its needs. Every method returns at once;
what takes time takes a callback, which is called on the shard's loop, possibly before the method
returns, and exactly once unless the connection is closed first (then it may be left out).

The shard calls the handler. For a new connection it makes a ``handler.AmqpSession``, sets
``connection.identity`` to it and ``connection.handler`` to the handler; the parser hands over the
protocol header and then frames and runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from fluxmq.auth.logins import AuthResult
    from fluxmq.auth.permissions import Permissions
    from fluxmq.model.batch_format import Batch
    from fluxmq.protocols.amqp091.run import AmqpPublishRun
    from fluxmq.protocols.connection import Connection
    from fluxmq.queues.commands import Verb
    from fluxmq.routing.topology.changes import Change
    from fluxmq.routing.topology.records import Exchange, QueueRecord
    from fluxmq.routing.topology.refusals import Refusal
    from fluxmq.routing.topology.topology import Topology
    from fluxmq.sessions.amqp091.connection_info import ConnectionInfo

Range = tuple[int, int]
"""First and last offset, inclusive."""

ConfirmCallback = Callable[[int], object]
"""Called with 0 when the request is durable, else with an `Outcome`."""


@dataclass(slots=True)
class AmqpLimits:
    """Settings of sessions; sizes in bytes, times in seconds.

    ``frame_max``, ``channel_max`` and ``heartbeat`` (0: none unless the client wants one) are
    offered in connection.tune. ``handshake_timeout``: from the header to connection.open.
    ``close_timeout``: wait for connection.close-ok. ``max_transaction_...``: limits of one
    channel's uncommitted transaction; ``max_incomplete_bytes``: held by all channels of a
    connection together, incomplete messages included. ``product`` and its version are announced in
    connection.start; ``product_version_1_0`` in open of AMQP 1.0, whose clients may use
    ``version_1_addresses``, and log in without credentials as ``anonymous_user``, empty for nobody.
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
    product_version_1_0: str = "4.2.0"
    version_1_addresses: bool = True
    anonymous_user: str = ""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Figures for queue.declare-ok. A queue that cannot be asked now has none (``done`` gets
    None)."""

    ready: int
    consumers: int


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """Consumer request of basic.consume, or of basic.get.

    ``limit``: maximum unacked messages, 0: the queue's limit. ``group``: group to consume in, empty
    for the queue's own competing consumers; of a stream its name or, for a private one, empty.
    ``start``: a stream consumer's start: ("first" | "last" | "next", 0), ("offset", n),
    ("timestamp", µs), ("interval", µs back from now); None is "next". ``taking``: only
    ``AmqpConsumerHandle.take`` delivers; not counted as a consumer. ``automatic``: with ``taking``
    only: taking settles. ``auto_commit``: acknowledging advances a stream's named group.
    ``activity``: its port is an `ActivityPort`, and is told if it is the single active consumer.
    ``browsing``: it reads the ready messages of a queue that is no stream, and takes none.
    ``cancel_on_failover``: it is cancelled when another node leads the queue.
    ``priority``: higher ones are served first. ``timeout``: µs after which unacked messages are
    released, 0: the queue's setting. ``asker``: id of the connection, which an exclusive queue
    compares with its owner.
    """

    queue: QueueRecord
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
    browsing: bool = False
    activity: bool = False
    cancel_on_failover: bool = False


class Routing(NamedTuple):
    """Inputs for routing and storing the messages of a run.

    ``block``: their properties. ``keys``: the routing keys, the message's own first (CC and BCC are
    the others); a queue matched by several gets it once. ``headers`` and ``properties``
    (correlation_id, message_id, timestamp): inputs of exchanges. ``identity``: the message's
    producer and sequence, if given; a queue drops duplicates. ``delay_us``: time before
    which it is not delivered, microseconds since the epoch, 0 for at once. ``attributes``: of the
    batch, beside those of a run.
    """

    exchange: Exchange
    block: bytes
    keys: Sequence[str]
    headers: Mapping[str, object] | None = None
    properties: Mapping[str, object] | None = None
    expiry_ms: int | None = None
    identity: tuple[int, int] | None = None
    delay_us: int = 0
    attributes: int = 0


class AmqpConsumerPort(Protocol):
    """Receiver of one consumer's messages, called within the consumer's limit."""

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Take ``count`` messages of ``batch`` from index ``first``; ``attempts`` counts this
        delivery."""

    def cancelled(self) -> None:
        """Handle the loss of the queue, or its host: no more deliveries, no more settlements."""


class AmqpConsumerHandle(Protocol):
    """Handle of an attached consumer."""

    def settle(
        self,
        verb: Verb,
        ranges: Sequence[Range],
        delay: int,
        reason: bytes,
        done: ConfirmCallback | None,
    ) -> None:
        """Settle messages. ``delay``: µs before a nacked one is redelivered, -1: the queue's
        back-off."""

    def set_limit(self, limit: int) -> None:
        """Set the maximum of unacked messages, 0: the queue's limit, negative: none."""

    def take(self, done: Callable[[bool, int], None]) -> None:
        """Take one message. It is delivered through the port before ``done`` gets True and the
        number still ready; False and 0 when there is none. A browser is told how many messages it
        has yet to look at, and True if the queue could be asked."""

    def stop(self) -> None:
        """Stop deliveries and no longer count as a consumer; unacked messages stay until settled or
        detached."""

    def detach(self) -> None:
        """Detach; unacked messages are requeued."""


class PendingConfirm(Protocol):
    """A publish waiting to be confirmed. Each ``hold`` is followed by one ``done``."""

    def hold(self) -> object:
        """Expect one more ``done``."""

    def done(self, reason: int = 0, /) -> object:
        """Report an `Outcome`. From `REFUSED_MIN` on the publisher gets basic.nack, below
        basic.ack."""


class ChannelLimitPort(Protocol):
    """Limits of users."""

    def open_channel(self, user: str) -> int | None:
        """Count a channel of a user, or return the limit that is reached."""

    def close_channel(self, user: str) -> None:
        """Count the end of a channel."""


class ChannelEventPort(Protocol):
    """Events of channels and consumers."""

    def channel_created(self, info: ConnectionInfo, number: int) -> None:
        """Tell a channel that is open."""

    def channel_closed(self, info: ConnectionInfo, number: int) -> None:
        """Tell the end of a channel."""

    def consumer_created(
        self, info: ConnectionInfo, number: int, queue: str, tag: str, about: Mapping[str, Any]
    ) -> None:
        """Tell a consumer; ``about`` has what its deletion does not repeat."""

    def consumer_deleted(self, info: ConnectionInfo, number: int, queue: str, tag: str) -> None:
        """Tell the end of a consumer."""


class AmqpBrokerPort(Protocol):
    """The shard as sessions see it."""

    topology: Topology
    """The shard's copy of the topology."""
    limits: AmqpLimits
    user_limits: ChannelLimitPort
    events: ChannelEventPort

    def now(self) -> float:
        """Return monotonic seconds at the start of this tick."""

    def now_us(self) -> int:
        """Return microseconds since the epoch."""

    def unique(self) -> str:
        """Return 22 globally unique characters of URL-safe base64, for generated names."""

    # Connection setup

    def authenticate(
        self,
        client: ConnectionInfo,
        mechanism: str,
        user: str,
        password: bytes,
        done: Callable[[AuthResult], None],
    ) -> None:
        """Check name and password; for EXTERNAL the certificate (``user`` is the requested name, or
        empty); for ANONYMOUS, only from where the client comes."""

    def permissions(self, user: str, vhost: str) -> Permissions | None:
        """Return a user's current permissions; None: no access to the vhost. Cheap; the same object
        until changed."""

    def enter(self, client: ConnectionInfo) -> str:
        """Count an authenticated connection into ``client.vhost`` and for its user; return the text
        of the refusal if a limit is reached, else an empty one.

        ``count_closed`` removes it again, if it was entered.
        """

    # Topology

    def change(self, changes: Sequence[Change], done: Callable[[Refusal | None], None]) -> None:
        """Change the topology. When ``done`` gets None, every shard knows the change."""

    def group_for(self, queue: QueueRecord) -> str:
        """Return the replication group for a new queue declared on this shard. Raises `Refusal` if
        there is none."""

    def queue_status(
        self, queue: QueueRecord, done: Callable[[QueueStatus | Refusal | None], None]
    ) -> None:
        """Get the ready messages and consumers of a queue; a refusal if its node cannot be reached.
        Counts as use of it."""

    def purge(self, queue: QueueRecord, done: Callable[[int | Refusal], None]) -> None:
        """Remove the ready messages; ``done`` gets their number."""

    def delete(
        self,
        queue: QueueRecord,
        if_unused: bool,
        if_empty: bool,
        done: Callable[[int | Refusal], None],
    ) -> None:
        """Delete a queue, its topology and its messages; ``done`` gets their number, or Refusal
        406."""

    # Messages

    def publish(
        self,
        connection: Connection,
        run: AmqpPublishRun,
        routing: Routing,
        confirmation: PendingConfirm | None,
    ) -> int:
        """Route a run and store it; return the number of queues and subscribers reached.

        The run lies in the receive buffer: copy what is kept beyond this call. To delay the answer,
        call ``confirmation.hold`` within the call.
        """

    def may_refuse(self, routing: Routing) -> bool:
        """Return whether a queue reached by this routing may accept part of a run and refuse the
        rest."""

    def consume(
        self,
        wanted: ConsumeRequest,
        port: AmqpConsumerPort,
        done: Callable[[AmqpConsumerHandle | Refusal], None],
    ) -> None:
        """Attach a consumer, or refuse (403 exclusive use, 404 queue gone). May deliver after
        ``done``."""

    def reply_open(self, port: AmqpConsumerPort) -> str:
        """Return a new address for direct replies, to follow ``amq.rabbitmq.reply-to.``; every
        shard can resolve it."""

    def reply_close(self, address: str) -> None:
        """Close a reply address."""

    def reply(self, address: str, run: AmqpPublishRun, block: bytes) -> bool:
        """Send a run to the port behind an address; return False if none is known here."""

    def reply_exists(self, address: str, done: Callable[[bool], None]) -> None:
        """Check whether an address has a consumer."""

    # Connections

    def schedule(self, connection: Connection, at: float) -> None:
        """Call the handler's ``due`` at this monotonic time or soon after, unless the connection is
        closed by then; a later call replaces an earlier one."""

    def mark(self) -> None:
        """Call the handler's ``flush_marked`` before this tick ends, or in the next one."""

    def pause(self, connection: Connection) -> None:
        """Stop reading the connection."""

    def resume(self, connection: Connection) -> None:
        """Resume reading the connection."""

    def hold_publisher(self, connection: Connection) -> None:
        """Stop reading a publishing connection until no resource alarm is left."""

    def release_publisher(self, connection: Connection) -> None:
        """Read a closing connection despite any resource alarm."""

    @property
    def short_of_memory(self) -> bool:
        """True while no new work may begin for clients: connections, publishes in transactions."""

    def refused_for_memory(self, what: str) -> None:
        """Count work refused for lack of memory: "connection", "transaction", "budget" or
        "incomplete"."""

    def close(self, connection: Connection, linger: bool) -> None:
        """Close once output is written; ``linger``: let the client read it before the socket
        goes."""

    def count_opened(self, client: ConnectionInfo) -> None:
        """Count a connection that reached connection.open-ok."""

    def count_closed(self, client: ConnectionInfo, reason: str) -> None:
        """Count the end of a connection."""

    def count_error(self, client: ConnectionInfo, code: int, text: str) -> None:
        """Count a protocol error and log it at a bounded rate."""

    def count_drop(self, reason: str, count: int) -> None:
        """Count messages not delivered."""

    def count_method(self, name: str) -> None:
        """Count a method received off the hot path."""
