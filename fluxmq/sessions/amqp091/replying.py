"""Direct reply-to: replies that go straight to the requester's channel, past all queues.

A client consumes from the pseudo-queue ``amq.rabbitmq.reply-to`` and names it in ``reply_to``; the
broker replaces it by an address of that channel, to which the responder publishes through the
default exchange. A reply is lost if its channel is gone or its output is full. As an address is no
queue, a mandatory reply is always returned.

Source: RabbitMQ's direct reply-to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.methods import BasicConsume, BasicConsumeOk
from fluxmq.routing.topology.records import Queue
from fluxmq.sessions.amqp091 import deliveries
from fluxmq.sessions.amqp091.channel import Channel, precondition
from fluxmq.sessions.amqp091.consumers import Consumer

if TYPE_CHECKING:
    from fluxmq.model.batch_format import Batch

PSEUDO_QUEUE: Final = "amq.rabbitmq.reply-to"
_PREFIX: Final = PSEUDO_QUEUE + "."


class ReplyConsumer(Consumer):
    """The consumer of a channel's replies, without acknowledgements. ``address``: the broker's name
    for it."""

    __slots__ = ("address",)

    def __init__(self, channel: Channel, tag: str, method: BasicConsume) -> None:
        queue = Queue(channel.client.vhost, PSEUDO_QUEUE)
        super().__init__(channel, queue, tag, True, 0, method.exclusive, 0, method.arguments)
        self.address = ""

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Write replies to the client."""
        channel = self.channel
        if channel is None:
            return
        if channel.client.connection.room() <= 0:
            channel.handler.broker.count_drop("reply_slow", count)
            return
        deliveries.write(channel, self, batch, first, count, attempts)

    def cancelled(self) -> None:
        """Do nothing: only its channel cancels it."""


def on_consume(channel: Channel, method: BasicConsume) -> None:
    """Start to consume replies. Raises AmqpError."""
    tag = method.consumer_tag
    if tag in channel.consumers:
        text = f"attempt to reuse consumer tag '{tag}'"
        raise HardError(ReplyCode.NOT_ALLOWED, text)
    if not method.no_ack:
        raise precondition("reply consumer cannot acknowledge")
    if channel.reply is not None:
        raise precondition("reply consumer already set")
    broker = channel.handler.broker
    tag = tag or f"amq.ctag-{broker.unique()}"
    reply = ReplyConsumer(channel, tag, method)
    reply.address = broker.reply_open(reply)
    channel.reply = reply
    if not method.no_wait:
        channel.send(BasicConsumeOk(tag))


def has_tag(channel: Channel, tag: str) -> bool:
    """Return whether this is the tag of the channel's reply consumer."""
    return channel.reply is not None and channel.reply.tag == tag


def close(channel: Channel) -> None:
    """Stop consuming replies."""
    reply, channel.reply = channel.reply, None
    if reply is not None:
        reply.channel = None
        channel.prepared = None
        channel.handler.broker.reply_close(reply.address)


def own_address(channel: Channel) -> str:
    """Return the address for ``reply_to``. Raises SoftError 406 when the channel consumes no
    replies."""
    if channel.reply is None:
        raise precondition("fast reply consumer does not exist")
    return _PREFIX + channel.reply.address


def address_in(exchange: str, routing_key: str) -> str | None:
    """Return the reply address that messages published like this are for; None if they are to be
    routed."""
    if exchange or not routing_key.startswith(_PREFIX):
        return None
    return routing_key[len(_PREFIX) :]


def is_reply_queue(name: str) -> bool:
    """Return whether a queue's name is the pseudo-queue or an address."""
    return name == PSEUDO_QUEUE or name.startswith(_PREFIX)
