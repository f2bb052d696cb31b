"""Queue names from clients: empty for the last declared one, and possibly with line ends.

Source: AMQP 0-9-1 section 1.7.2 (queue; "the last queue declared on the channel"); dropping line
ends is RabbitMQ's.
"""

from __future__ import annotations

from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.routing.topology.records import Queue
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.sessions.amqp091.channel import Channel, error_from


def clean(name: str) -> str:
    """Return a name without carriage returns and line feeds."""
    return name.replace("\r", "").replace("\n", "") if "\r" in name or "\n" in name else name


def expanded(channel: Channel, name: str) -> str:
    """Resolve an empty name. Raises SoftError 404 when the channel has declared no queue."""
    if name:
        return clean(name)
    if not channel.last_queue:
        raise SoftError(ReplyCode.NOT_FOUND, "no previously declared queue")
    return channel.last_queue


def existing_queue(channel: Channel, name: str) -> Queue:
    """Return the queue. Raises SoftError 404, or 405 when it is exclusive to another connection."""
    client = channel.client
    try:
        return channel.handler.broker.topology.require_queue(client.vhost, name, client.owner)
    except Refusal as refusal:
        raise error_from(refusal) from None
