"""Direct reply-to: replies that go straight to the requester's channel, past all queues.

A client consumes from the pseudo-queue ``amq.rabbitmq.reply-to`` and names it in ``reply_to``; the
broker replaces it by an address of that channel, to which the responder publishes through the
default exchange. A reply is lost if its channel is gone or its output is full. As an address is no
queue, a mandatory reply is always returned.

Source: RabbitMQ's direct reply-to.
"""

from __future__ import annotations

from typing import Final

PSEUDO_QUEUE: Final = "amq.rabbitmq.reply-to"
PREFIX: Final = PSEUDO_QUEUE + "."


def address_in(exchange: str, routing_key: str) -> str | None:
    """Return the reply address that messages published like this are for; None if they are to be
    routed."""
    if exchange or not routing_key.startswith(PREFIX):
        return None
    return routing_key[len(PREFIX) :]


def is_reply_queue(name: str) -> bool:
    """Return whether a queue's name is the pseudo-queue or an address."""
    return name == PSEUDO_QUEUE or name.startswith(PREFIX)
