"""One tuple per method of AMQP 0.9.1 and of RabbitMQ's extensions, named class and method.

Fields have the specification's names and order, in snake_case; reserved ones are omitted
(``global`` is a keyword in Python, so it is `global_`). The table in ``method_table`` defines their
encoding. Tuples of different methods with equal fields compare equal: check the type.

Source: AMQP 0-9-1 section 1.4 (classes and methods), RabbitMQ 3.10's extensions.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluxmq.protocols.amqp091.tables import Table

NO_ENTRIES: Final[Table] = {}
"""Default for an omitted table; never modified."""


class ConnectionStart(NamedTuple):
    """Server's first method: its properties and SASL mechanisms."""

    version_major: int
    version_minor: int
    server_properties: Table
    mechanisms: bytes
    locales: bytes


class ConnectionStartOk(NamedTuple):
    """Client's choice of mechanism, and its response."""

    client_properties: Table
    mechanism: str
    response: bytes
    locale: str = ""


class ConnectionSecure(NamedTuple):
    """A SASL challenge."""

    challenge: bytes


class ConnectionSecureOk(NamedTuple):
    """Answer to a challenge."""

    response: bytes


class ConnectionTune(NamedTuple):
    """Limits proposed by the server; heartbeat in seconds, 0 is none."""

    channel_max: int
    frame_max: int
    heartbeat: int


class ConnectionTuneOk(NamedTuple):
    """Limits accepted by the client."""

    channel_max: int
    frame_max: int
    heartbeat: int


class ConnectionOpen(NamedTuple):
    """Selection of a vhost."""

    virtual_host: str


class ConnectionOpenOk(NamedTuple):
    """Confirmation: the connection is open."""


class ConnectionClose(NamedTuple):
    """Close of the connection, and the reason."""

    reply_code: int
    reply_text: str
    class_id: int
    method_id: int


class ConnectionCloseOk(NamedTuple):
    """Confirmation of connection.close."""


class ConnectionBlocked(NamedTuple):
    """RabbitMQ: the server stops reading publishes."""

    reason: str = ""


class ConnectionUnblocked(NamedTuple):
    """RabbitMQ: the server reads publishes again."""


class ConnectionUpdateSecret(NamedTuple):
    """RabbitMQ: a new password or token for an open connection."""

    new_secret: bytes
    reason: str = ""


class ConnectionUpdateSecretOk(NamedTuple):
    """RabbitMQ: confirmation of connection.update-secret."""


class ChannelOpen(NamedTuple):
    """Request for a channel."""


class ChannelOpenOk(NamedTuple):
    """Confirmation: the channel is open."""


class ChannelFlow(NamedTuple):
    """Request to stop or resume sending content."""

    active: bool = False


class ChannelFlowOk(NamedTuple):
    """The present state of the flow."""

    active: bool = False


class ChannelClose(NamedTuple):
    """Close of the channel, and the reason."""

    reply_code: int
    reply_text: str
    class_id: int
    method_id: int


class ChannelCloseOk(NamedTuple):
    """Confirmation of channel.close."""


class AccessRequest(NamedTuple):
    """Request of AMQP 0.9 for a ticket; old clients still send it."""

    realm: str
    exclusive: bool = False
    passive: bool = False
    active: bool = False
    write: bool = False
    read: bool = False


class AccessRequestOk(NamedTuple):
    """A ticket, which nothing reads."""

    ticket: int


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


class ExchangeDeclareOk(NamedTuple):
    """Confirmation: the exchange exists."""


class ExchangeDelete(NamedTuple):
    """Delete an exchange."""

    exchange: str
    if_unused: bool = False
    no_wait: bool = False


class ExchangeDeleteOk(NamedTuple):
    """Confirmation: the exchange is deleted."""


class ExchangeBind(NamedTuple):
    """RabbitMQ: bind an exchange to an exchange."""

    destination: str
    source: str
    routing_key: str = ""
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class ExchangeBindOk(NamedTuple):
    """RabbitMQ: confirmation of exchange.bind."""


class ExchangeUnbind(NamedTuple):
    """RabbitMQ: remove a binding between exchanges."""

    destination: str
    source: str
    routing_key: str = ""
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class ExchangeUnbindOk(NamedTuple):
    """RabbitMQ: confirmation of exchange.unbind. Its number is 51, not 41."""


class QueueDeclare(NamedTuple):
    """Create a queue, or check that it exists; the server names an unnamed one."""

    queue: str = ""
    passive: bool = False
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class QueueDeclareOk(NamedTuple):
    """The queue's name, messages and consumers."""

    queue: str
    message_count: int
    consumer_count: int


class QueueBind(NamedTuple):
    """Bind a queue to an exchange."""

    queue: str
    exchange: str
    routing_key: str = ""
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class QueueBindOk(NamedTuple):
    """Confirmation of queue.bind."""


class QueuePurge(NamedTuple):
    """Remove all ready messages."""

    queue: str = ""
    no_wait: bool = False


class QueuePurgeOk(NamedTuple):
    """Number of removed messages."""

    message_count: int


class QueueDelete(NamedTuple):
    """Delete a queue."""

    queue: str = ""
    if_unused: bool = False
    if_empty: bool = False
    no_wait: bool = False


class QueueDeleteOk(NamedTuple):
    """Number of messages deleted with the queue."""

    message_count: int


class QueueUnbind(NamedTuple):
    """Remove a binding; there is no no-wait."""

    queue: str
    exchange: str
    routing_key: str = ""
    arguments: Table = NO_ENTRIES


class QueueUnbindOk(NamedTuple):
    """Confirmation of queue.unbind."""


class BasicQos(NamedTuple):
    """Limit of unacked messages; `global_`: of the channel, else of new consumers (RabbitMQ)."""

    prefetch_size: int
    prefetch_count: int
    global_: bool = False


class BasicQosOk(NamedTuple):
    """Confirmation of basic.qos."""


class BasicConsume(NamedTuple):
    """Start a consumer."""

    queue: str = ""
    consumer_tag: str = ""
    no_local: bool = False
    no_ack: bool = False
    exclusive: bool = False
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class BasicConsumeOk(NamedTuple):
    """Confirmation: the consumer's tag."""

    consumer_tag: str


class BasicCancel(NamedTuple):
    """Cancel a consumer; from the server: it was cancelled (RabbitMQ)."""

    consumer_tag: str
    no_wait: bool = False


class BasicCancelOk(NamedTuple):
    """Confirmation of basic.cancel."""

    consumer_tag: str


class BasicPublish(NamedTuple):
    """A message; its content follows."""

    exchange: str
    routing_key: str = ""
    mandatory: bool = False
    immediate: bool = False


class BasicReturn(NamedTuple):
    """A returned mandatory message that was unroutable; its content follows."""

    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str


class BasicDeliver(NamedTuple):
    """A message for a consumer; its content follows."""

    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str


class BasicGet(NamedTuple):
    """Request for one message."""

    queue: str = ""
    no_ack: bool = False


class BasicGetOk(NamedTuple):
    """One message and the number left; its content follows."""

    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: int


class BasicGetEmpty(NamedTuple):
    """Answer to basic.get: the queue is empty."""


class BasicAck(NamedTuple):
    """Acknowledge messages; to a publisher: they are safe (RabbitMQ)."""

    delivery_tag: int
    multiple: bool = False


class BasicReject(NamedTuple):
    """Reject one message."""

    delivery_tag: int
    requeue: bool = False


class BasicRecoverAsync(NamedTuple):
    """Redeliver unacked messages, without an answer; deprecated."""

    requeue: bool = False


class BasicRecover(NamedTuple):
    """Redeliver unacked messages."""

    requeue: bool = False


class BasicRecoverOk(NamedTuple):
    """Confirmation of basic.recover."""


class BasicNack(NamedTuple):
    """RabbitMQ: reject messages; to a publisher: they are not safe."""

    delivery_tag: int
    multiple: bool = False
    requeue: bool = False


class BasicCredit(NamedTuple):
    """RabbitMQ: credit of a consumer, for its AMQP 1.0 gateway."""

    consumer_tag: str
    credit: int
    drain: bool = False


class BasicCreditOk(NamedTuple):
    """RabbitMQ: number of ready messages."""

    available: int


class BasicCreditDrained(NamedTuple):
    """RabbitMQ: credit that was returned."""

    consumer_tag: str
    credit_drained: int


class ConfirmSelect(NamedTuple):
    """RabbitMQ: request to confirm publishes on this channel."""

    no_wait: bool = False


class ConfirmSelectOk(NamedTuple):
    """RabbitMQ: confirmation of confirm.select."""


class TxSelect(NamedTuple):
    """Make publishes and acknowledgements wait for a commit."""


class TxSelectOk(NamedTuple):
    """Confirmation of tx.select."""


class TxCommit(NamedTuple):
    """Commit the transaction."""


class TxCommitOk(NamedTuple):
    """Confirmation: the transaction is committed."""


class TxRollback(NamedTuple):
    """Roll the transaction back."""


class TxRollbackOk(NamedTuple):
    """Confirmation: the transaction is rolled back."""
