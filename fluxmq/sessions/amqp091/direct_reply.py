"""Direct reply-to: replies that go straight to the requester's channel, past all queues.

A client consumes from the pseudo-queue ``amq.rabbitmq.reply-to`` and names it in ``reply_to``; the
broker replaces it by an address of that channel, to which the responder publishes through the
default exchange. A reply is lost if its channel is gone or its output is full. As an address is no
queue, a mandatory reply is always returned.

Source: RabbitMQ's direct reply-to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fluxmq.routing.topology.records import QueueRecord
from fluxmq.sessions.amqp091.consumers import Taker

if TYPE_CHECKING:
    from fluxmq.model.batch_format import Batch
    from fluxmq.sessions.amqp091.channel import Channel

PSEUDO_QUEUE: Final = "amq.rabbitmq.reply-to"
PREFIX: Final = PSEUDO_QUEUE + "."


class ReplyConsumer(Taker):
    """The consumer of a channel's replies, without acknowledgements. ``address``: the broker's name
    for it."""

    __slots__ = ("address", "tag", "tag_bytes")

    def __init__(self, channel: Channel, tag: str) -> None:
        super().__init__(channel, QueueRecord(channel.client.vhost, PSEUDO_QUEUE), automatic=True)
        self.tag = tag
        self.tag_bytes = tag.encode()
        self.address = ""

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Write replies to the client."""
        channel = self.channel
        if channel is None:
            return
        if channel.client.connection.room() <= 0:
            channel.broker.count_drop("reply_slow", count)
            return
        channel.client.handler.heads.write(channel, self, batch, first, count, attempts)

    def cancelled(self) -> None:
        """Do nothing: only its channel cancels it."""

    def close(self) -> None:
        """Stop consuming replies."""
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.publisher.prepared = None
            channel.broker.reply_close(self.address)


def address_in(exchange: str, routing_key: str) -> str | None:
    """Return the reply address that messages published like this are for; None if they are to be
    routed."""
    if exchange or not routing_key.startswith(PREFIX):
        return None
    return routing_key[len(PREFIX) :]


def is_reply_queue(name: str) -> bool:
    """Return whether a queue's name is the pseudo-queue or an address."""
    return name == PSEUDO_QUEUE or name.startswith(PREFIX)
