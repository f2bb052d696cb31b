"""One tuple per method of AMQP 0.9.1 and of RabbitMQ's extensions, named class and method.

Fields are named and ordered as the specification does, in snake_case; reserved ones are left out (``global`` is a word of
Python's, so that it is `global_`). How they stand on the wire is the table in ``methods``. Tuples of different methods with
equal fields compare equal: ask for the type.

Source: AMQP 0-9-1 section 1.4 (classes and methods), RabbitMQ 3.10's extensions.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluxmq.protocols.amqp091.tables import Table

NO_ENTRIES: Final[Table] = {}
"""The table of who leaves one out; never changed."""


class ConnectionStart(NamedTuple):
    """The server's opening: what it is and how one may authenticate."""

    version_major: int
    version_minor: int
    server_properties: Table
    mechanisms: bytes
    locales: bytes


class ConnectionStartOk(NamedTuple):
    """The client's choice of mechanism, and its response."""

    client_properties: Table
    mechanism: str
    response: bytes
    locale: str = ""


class ConnectionSecure(NamedTuple):
    """A SASL challenge."""

    challenge: bytes


class ConnectionSecureOk(NamedTuple):
    """The answer to a challenge."""

    response: bytes


class ConnectionTune(NamedTuple):
    """Limits the server proposes; heartbeat in seconds, 0 is none."""

    channel_max: int
    frame_max: int
    heartbeat: int


class ConnectionTuneOk(NamedTuple):
    """Limits the client takes."""

    channel_max: int
    frame_max: int
    heartbeat: int


class ConnectionOpen(NamedTuple):
    """Which vhost to work in."""

    virtual_host: str


class ConnectionOpenOk(NamedTuple):
    """The connection is ready."""


class ConnectionClose(NamedTuple):
    """The connection ends, and why."""

    reply_code: int
    reply_text: str
    class_id: int
    method_id: int


class ConnectionCloseOk(NamedTuple):
    """The end is agreed."""


class ConnectionBlocked(NamedTuple):
    """RabbitMQ: the server reads no more publishes for now."""

    reason: str = ""


class ConnectionUnblocked(NamedTuple):
    """RabbitMQ: it does again."""


class ConnectionUpdateSecret(NamedTuple):
    """RabbitMQ: a new password or token for a connection that is open."""

    new_secret: bytes
    reason: str = ""


class ConnectionUpdateSecretOk(NamedTuple):
    """RabbitMQ: it was taken."""


class ChannelOpen(NamedTuple):
    """A channel begins."""


class ChannelOpenOk(NamedTuple):
    """It is open."""


class ChannelFlow(NamedTuple):
    """Stop or go on with sending content."""

    active: bool = False


class ChannelFlowOk(NamedTuple):
    """What now holds."""

    active: bool = False


class ChannelClose(NamedTuple):
    """The channel ends, and why."""

    reply_code: int
    reply_text: str
    class_id: int
    method_id: int


class ChannelCloseOk(NamedTuple):
    """The end is agreed."""


class AccessRequest(NamedTuple):
    """Of AMQP 0.9: asks for a ticket; old clients still do."""

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
    """Create an exchange, or check that it is there."""

    exchange: str
    type: str
    passive: bool = False
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class ExchangeDeclareOk(NamedTuple):
    """It is there."""


class ExchangeDelete(NamedTuple):
    """Delete an exchange."""

    exchange: str
    if_unused: bool = False
    no_wait: bool = False


class ExchangeDeleteOk(NamedTuple):
    """It is gone."""


class ExchangeBind(NamedTuple):
    """RabbitMQ: bind an exchange to an exchange."""

    destination: str
    source: str
    routing_key: str = ""
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class ExchangeBindOk(NamedTuple):
    """RabbitMQ: it is bound."""


class ExchangeUnbind(NamedTuple):
    """RabbitMQ: undo it."""

    destination: str
    source: str
    routing_key: str = ""
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class ExchangeUnbindOk(NamedTuple):
    """RabbitMQ: it is undone. Its number is 51, not 41."""


class QueueDeclare(NamedTuple):
    """Create a queue, or check that it is there; the server names one without a name."""

    queue: str = ""
    passive: bool = False
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class QueueDeclareOk(NamedTuple):
    """Its name and what is in it."""

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
    """It is bound."""


class QueuePurge(NamedTuple):
    """Remove all messages that are ready."""

    queue: str = ""
    no_wait: bool = False


class QueuePurgeOk(NamedTuple):
    """How many they were."""

    message_count: int


class QueueDelete(NamedTuple):
    """Delete a queue."""

    queue: str = ""
    if_unused: bool = False
    if_empty: bool = False
    no_wait: bool = False


class QueueDeleteOk(NamedTuple):
    """How many messages went with it."""

    message_count: int


class QueueUnbind(NamedTuple):
    """Undo a binding; there is no no-wait."""

    queue: str
    exchange: str
    routing_key: str = ""
    arguments: Table = NO_ENTRIES


class QueueUnbindOk(NamedTuple):
    """It is undone."""


class BasicQos(NamedTuple):
    """How much may be unacknowledged; with `global_` for the channel, else for each consumer to come (RabbitMQ)."""

    prefetch_size: int
    prefetch_count: int
    global_: bool = False


class BasicQosOk(NamedTuple):
    """It holds."""


class BasicConsume(NamedTuple):
    """Begin to consume."""

    queue: str = ""
    consumer_tag: str = ""
    no_local: bool = False
    no_ack: bool = False
    exclusive: bool = False
    no_wait: bool = False
    arguments: Table = NO_ENTRIES


class BasicConsumeOk(NamedTuple):
    """The consumer's tag."""

    consumer_tag: str


class BasicCancel(NamedTuple):
    """End a consumer; from the server: it has ended (RabbitMQ)."""

    consumer_tag: str
    no_wait: bool = False


class BasicCancelOk(NamedTuple):
    """It has ended."""

    consumer_tag: str


class BasicPublish(NamedTuple):
    """A message; its content follows."""

    exchange: str
    routing_key: str = ""
    mandatory: bool = False
    immediate: bool = False


class BasicReturn(NamedTuple):
    """A mandatory message that went nowhere; its content follows."""

    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str


class BasicDeliver(NamedTuple):
    """A message to a consumer; its content follows."""

    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str


class BasicGet(NamedTuple):
    """Ask for one message."""

    queue: str = ""
    no_ack: bool = False


class BasicGetOk(NamedTuple):
    """One message and how many are left; its content follows."""

    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: int


class BasicGetEmpty(NamedTuple):
    """There is none."""


class BasicAck(NamedTuple):
    """Messages are done; to a publisher: they are safe (RabbitMQ)."""

    delivery_tag: int
    multiple: bool = False


class BasicReject(NamedTuple):
    """One message is not wanted."""

    delivery_tag: int
    requeue: bool = False


class BasicRecoverAsync(NamedTuple):
    """Deliver again what is unacknowledged, without an answer; deprecated."""

    requeue: bool = False


class BasicRecover(NamedTuple):
    """Deliver again what is unacknowledged."""

    requeue: bool = False


class BasicRecoverOk(NamedTuple):
    """It will be."""


class BasicNack(NamedTuple):
    """RabbitMQ: messages are not wanted; to a publisher: they are not safe."""

    delivery_tag: int
    multiple: bool = False
    requeue: bool = False


class BasicCredit(NamedTuple):
    """RabbitMQ: credit of a consumer, for its AMQP 1.0 gateway."""

    consumer_tag: str
    credit: int
    drain: bool = False


class BasicCreditOk(NamedTuple):
    """RabbitMQ: messages that are ready."""

    available: int


class BasicCreditDrained(NamedTuple):
    """RabbitMQ: credit that was given back."""

    consumer_tag: str
    credit_drained: int


class ConfirmSelect(NamedTuple):
    """RabbitMQ: publishes on this channel are to be confirmed."""

    no_wait: bool = False


class ConfirmSelectOk(NamedTuple):
    """RabbitMQ: they will be."""


class TxSelect(NamedTuple):
    """Publishes and acknowledgements wait for a commit from here on."""


class TxSelectOk(NamedTuple):
    """They do."""


class TxCommit(NamedTuple):
    """Make them hold."""


class TxCommitOk(NamedTuple):
    """They hold."""


class TxRollback(NamedTuple):
    """Forget them."""


class TxRollbackOk(NamedTuple):
    """They are forgotten."""
