"""The methods of AMQP 0.9.1 and of RabbitMQ's extensions: one tuple each, and its fields on the
wire.

Tuples are named class and method. Fields have the specification's names and order, in snake_case;
reserved ones are omitted (``global`` is a keyword in Python, so it is `global_`). Tuples of
different methods with equal fields compare equal: check the type. ``method_codec`` reads and writes
them.

Longer than 500 lines because it is the specification's list of methods; a test holds it against
another implementation's. Source: AMQP 0-9-1 section 1.4 (classes and methods), RabbitMQ 3.10's
extensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from fluxmq.protocols.amqp091.tables import Table

NO_ENTRIES: Final[Table] = {}
"""Default for an omitted table; never modified."""
LAYOUTS: Final[list[tuple[int, int, type, str]]] = []
"""Class, method, tuple and fields in order.

``B`` octet, ``H`` short, ``I`` long, ``Q`` long long, ``s`` short string, ``S`` long string, ``F``
field table, ``?`` bit; with a leading dash a reserved field, which is written empty and skipped.
"""

Method = tuple[Any, ...]
"""Any of the tuples below."""
T = TypeVar("T", bound=type)


def _wire(class_id: int, method_id: int, fields: str = "") -> Callable[[T], T]:
    """Note a method's layout."""

    def note(made: T) -> T:
        LAYOUTS.append((class_id, method_id, made, fields))
        return made

    return note


@_wire(10, 10, "B B F S S")
class ConnectionStart(NamedTuple):
    """Server's first method: its properties and SASL mechanisms."""

    version_major: int
    version_minor: int
    server_properties: Table
    mechanisms: bytes
    locales: bytes


@_wire(10, 11, "F s S s")
class ConnectionStartOk(NamedTuple):
    """Client's choice of mechanism, and its response."""

    client_properties: Table
    mechanism: str
    response: bytes
    locale: str = ""


@_wire(10, 20, "S")
class ConnectionSecure(NamedTuple):
    """A SASL challenge."""

    challenge: bytes


@_wire(10, 21, "S")
class ConnectionSecureOk(NamedTuple):
    """Answer to a challenge."""

    response: bytes


@_wire(10, 30, "H I H")
class ConnectionTune(NamedTuple):
    """Limits proposed by the server; heartbeat in seconds, 0 is none."""

    channel_max: int
    frame_max: int
    heartbeat: int


@_wire(10, 31, "H I H")
class ConnectionTuneOk(NamedTuple):
    """Limits accepted by the client."""

    channel_max: int
    frame_max: int
    heartbeat: int


@_wire(10, 40, "s -s -?")
class ConnectionOpen(NamedTuple):
    """Selection of a vhost."""

    virtual_host: str


@_wire(10, 41, "-s")
class ConnectionOpenOk(NamedTuple):
    """Confirmation: the connection is open."""


@_wire(10, 50, "H s H H")
class ConnectionClose(NamedTuple):
    """Close of the connection, and the reason."""

    reply_code: int
    reply_text: str
    class_id: int
    method_id: int


@_wire(10, 51)
class ConnectionCloseOk(NamedTuple):
    """Confirmation of connection.close."""


@_wire(10, 60, "s")
class ConnectionBlocked(NamedTuple):
    """RabbitMQ: the server stops reading publishes."""

    reason: str = ""


@_wire(10, 61)
class ConnectionUnblocked(NamedTuple):
    """RabbitMQ: the server reads publishes again."""


@_wire(10, 70, "S s")
class ConnectionUpdateSecret(NamedTuple):
    """RabbitMQ: a new password or token for an open connection."""

    new_secret: bytes
    reason: str = ""


@_wire(10, 71)
class ConnectionUpdateSecretOk(NamedTuple):
    """RabbitMQ: confirmation of connection.update-secret."""


@_wire(20, 10, "-s")
class ChannelOpen(NamedTuple):
    """Request for a channel."""


@_wire(20, 11, "-S")
class ChannelOpenOk(NamedTuple):
    """Confirmation: the channel is open."""


@_wire(20, 20, "?")
class ChannelFlow(NamedTuple):
    """Request to stop or resume sending content."""

    active: bool = False


@_wire(20, 21, "?")
class ChannelFlowOk(NamedTuple):
    """The present state of the flow."""

    active: bool = False


@_wire(20, 40, "H s H H")
class ChannelClose(NamedTuple):
    """Close of the channel, and the reason."""

    reply_code: int
    reply_text: str
    class_id: int
    method_id: int


@_wire(20, 41)
class ChannelCloseOk(NamedTuple):
    """Confirmation of channel.close."""


@_wire(30, 10, "s ? ? ? ? ?")
class AccessRequest(NamedTuple):
    """Request of AMQP 0.9 for a ticket; old clients still send it."""

    realm: str
    exclusive: bool = False
    passive: bool = False
    active: bool = False
    write: bool = False
    read: bool = False


@_wire(30, 11, "H")
class AccessRequestOk(NamedTuple):
    """A ticket, which nothing reads."""

    ticket: int


@_wire(40, 10, "-H s s ? ? ? ? ? F")
class ExchangeDeclare(NamedTuple):
    """Create an exchange, or check that it exists."""

    exchange: str
    type: str
    passive: bool = False
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


@_wire(40, 11)
class ExchangeDeclareOk(NamedTuple):
    """Confirmation: the exchange exists."""


@_wire(40, 20, "-H s ? ?")
class ExchangeDelete(NamedTuple):
    """Delete an exchange."""

    exchange: str
    if_unused: bool = False
    no_wait: bool = False


@_wire(40, 21)
class ExchangeDeleteOk(NamedTuple):
    """Confirmation: the exchange is deleted."""


@_wire(40, 30, "-H s s s ? F")
class ExchangeBind(NamedTuple):
    """RabbitMQ: bind an exchange to an exchange."""

    destination: str
    source: str
    routing_key: str = ""
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


@_wire(40, 31)
class ExchangeBindOk(NamedTuple):
    """RabbitMQ: confirmation of exchange.bind."""


@_wire(40, 40, "-H s s s ? F")
class ExchangeUnbind(NamedTuple):
    """RabbitMQ: remove a binding between exchanges."""

    destination: str
    source: str
    routing_key: str = ""
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


@_wire(40, 51)
class ExchangeUnbindOk(NamedTuple):
    """RabbitMQ: confirmation of exchange.unbind. Its number is 51, not 41."""


@_wire(50, 10, "-H s ? ? ? ? ? F")
class QueueDeclare(NamedTuple):
    """Create a queue, or check that it exists; the server names an unnamed one."""

    queue: str = ""
    passive: bool = False
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


@_wire(50, 11, "s I I")
class QueueDeclareOk(NamedTuple):
    """The queue's name, messages and consumers."""

    queue: str
    message_count: int
    consumer_count: int


@_wire(50, 20, "-H s s s ? F")
class QueueBind(NamedTuple):
    """Bind a queue to an exchange."""

    queue: str
    exchange: str
    routing_key: str = ""
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


@_wire(50, 21)
class QueueBindOk(NamedTuple):
    """Confirmation of queue.bind."""


@_wire(50, 30, "-H s ?")
class QueuePurge(NamedTuple):
    """Remove all ready messages."""

    queue: str = ""
    no_wait: bool = False


@_wire(50, 31, "I")
class QueuePurgeOk(NamedTuple):
    """Number of removed messages."""

    message_count: int


@_wire(50, 40, "-H s ? ? ?")
class QueueDelete(NamedTuple):
    """Delete a queue."""

    queue: str = ""
    if_unused: bool = False
    if_empty: bool = False
    no_wait: bool = False


@_wire(50, 41, "I")
class QueueDeleteOk(NamedTuple):
    """Number of messages deleted with the queue."""

    message_count: int


@_wire(50, 50, "-H s s s F")
class QueueUnbind(NamedTuple):
    """Remove a binding; there is no no-wait."""

    queue: str
    exchange: str
    routing_key: str = ""
    arguments: Table = NO_ENTRIES


@_wire(50, 51)
class QueueUnbindOk(NamedTuple):
    """Confirmation of queue.unbind."""


@_wire(60, 10, "I H ?")
class BasicQos(NamedTuple):
    """Limit of unacked messages; `global_`: of the channel, else of new consumers (RabbitMQ)."""

    prefetch_size: int
    prefetch_count: int
    global_: bool = False


@_wire(60, 11)
class BasicQosOk(NamedTuple):
    """Confirmation of basic.qos."""


@_wire(60, 20, "-H s s ? ? ? ? F")
class BasicConsume(NamedTuple):
    """Start a consumer."""

    queue: str = ""
    consumer_tag: str = ""
    no_local: bool = False
    no_ack: bool = False
    exclusive: bool = False
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


@_wire(60, 21, "s")
class BasicConsumeOk(NamedTuple):
    """Confirmation: the consumer's tag."""

    consumer_tag: str


@_wire(60, 30, "s ?")
class BasicCancel(NamedTuple):
    """Cancel a consumer; from the server: it was cancelled (RabbitMQ)."""

    consumer_tag: str
    no_wait: bool = False


@_wire(60, 31, "s")
class BasicCancelOk(NamedTuple):
    """Confirmation of basic.cancel."""

    consumer_tag: str


@_wire(60, 40, "-H s s ? ?")
class BasicPublish(NamedTuple):
    """A message; its content follows."""

    exchange: str
    routing_key: str = ""
    mandatory: bool = False
    immediate: bool = False


@_wire(60, 50, "H s s s")
class BasicReturn(NamedTuple):
    """A returned mandatory message that was unroutable; its content follows."""

    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str


@_wire(60, 60, "s Q ? s s")
class BasicDeliver(NamedTuple):
    """A message for a consumer; its content follows."""

    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str


@_wire(60, 70, "-H s ?")
class BasicGet(NamedTuple):
    """Request for one message."""

    queue: str = ""
    no_ack: bool = False


@_wire(60, 71, "Q ? s s I")
class BasicGetOk(NamedTuple):
    """One message and the number left; its content follows."""

    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: int


@_wire(60, 72, "-s")
class BasicGetEmpty(NamedTuple):
    """Answer to basic.get: the queue is empty."""


@_wire(60, 80, "Q ?")
class BasicAck(NamedTuple):
    """Acknowledge messages; to a publisher: they are safe (RabbitMQ)."""

    delivery_tag: int
    multiple: bool = False


@_wire(60, 90, "Q ?")
class BasicReject(NamedTuple):
    """Reject one message."""

    delivery_tag: int
    requeue: bool = False


@_wire(60, 100, "?")
class BasicRecoverAsync(NamedTuple):
    """Redeliver unacked messages, without an answer; deprecated."""

    requeue: bool = False


@_wire(60, 110, "?")
class BasicRecover(NamedTuple):
    """Redeliver unacked messages."""

    requeue: bool = False


@_wire(60, 111)
class BasicRecoverOk(NamedTuple):
    """Confirmation of basic.recover."""


@_wire(60, 120, "Q ? ?")
class BasicNack(NamedTuple):
    """RabbitMQ: reject messages; to a publisher: they are not safe."""

    delivery_tag: int
    multiple: bool = False
    requeue: bool = False


@_wire(60, 200, "s I ?")
class BasicCredit(NamedTuple):
    """RabbitMQ: credit of a consumer, for its AMQP 1.0 gateway."""

    consumer_tag: str
    credit: int
    drain: bool = False


@_wire(60, 201, "I")
class BasicCreditOk(NamedTuple):
    """RabbitMQ: number of ready messages."""

    available: int


@_wire(60, 202, "s I")
class BasicCreditDrained(NamedTuple):
    """RabbitMQ: credit that was returned."""

    consumer_tag: str
    credit_drained: int


@_wire(85, 10, "?")
class ConfirmSelect(NamedTuple):
    """RabbitMQ: request to confirm publishes on this channel."""

    no_wait: bool = False


@_wire(85, 11)
class ConfirmSelectOk(NamedTuple):
    """RabbitMQ: confirmation of confirm.select."""


@_wire(90, 10)
class TxSelect(NamedTuple):
    """Make publishes and acknowledgements wait for a commit."""


@_wire(90, 11)
class TxSelectOk(NamedTuple):
    """Confirmation of tx.select."""


@_wire(90, 20)
class TxCommit(NamedTuple):
    """Commit the transaction."""


@_wire(90, 21)
class TxCommitOk(NamedTuple):
    """Confirmation: the transaction is committed."""


@_wire(90, 30)
class TxRollback(NamedTuple):
    """Roll the transaction back."""


@_wire(90, 31)
class TxRollbackOk(NamedTuple):
    """Confirmation: the transaction is rolled back."""
