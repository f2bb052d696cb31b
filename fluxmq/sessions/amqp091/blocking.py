"""Blocking of publishers by a resource alarm, and their notification.

Every client that has published is blocked, whether or not it announced the capability
connection.blocked.

Source: RabbitMQ's blocked connection notifications and resource alarms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fluxmq.protocols.amqp091.methods import (
    BasicPublish,
    ConnectionBlocked,
    ConnectionUnblocked,
    frame,
)
from fluxmq.sessions.amqp091.channel import precondition
from fluxmq.sessions.amqp091.client import Client, Stage

if TYPE_CHECKING:
    from fluxmq.sessions.amqp091.handler import Handler

CAPABILITY: Final = "connection.blocked"


def block(handler: Handler, reason: str) -> None:
    """Stop reading publishers, and notify those with the capability, once."""
    handler.blocked = reason
    for client in handler.clients:
        if client.connection.publishing:
            _stop(handler, client)


def began(handler: Handler, client: Client) -> None:
    """Note a client's first publish."""
    client.connection.publishing = True
    if handler.blocked:
        _stop(handler, client)


def _stop(handler: Handler, client: Client) -> None:
    if client.stage is not Stage.RUNNING:
        return
    handler.broker.hold_publisher(client.connection)
    if not client.blocked and CAPABILITY in client.capabilities:
        client.connection.append(frame(0, ConnectionBlocked(handler.blocked)))
    client.blocked = True


def unblock(handler: Handler) -> None:
    """Notify the blocked publishers that the alarm is over; the shard resumes reading."""
    handler.blocked = ""
    for client in handler.clients:
        if client.blocked:
            client.blocked = False
            if client.stage is Stage.RUNNING and CAPABILITY in client.capabilities:
                client.connection.append(frame(0, ConnectionUnblocked()))


def give_up(handler: Handler) -> None:
    """Close the channels of blocked publishers that hold an incomplete message or an uncommitted
    transaction.

    Only the client could end these, and it is not read: an alarm that they cause would last for
    ever.
    """
    for client in list(handler.clients):
        if client.blocked and client.budget.used:
            for channel in list(client.channels.values()):
                kept = (channel.content, channel.transaction)
                if any(each is not None and each.share.bytes for each in kept):
                    handler.broker.refused_for_memory("incomplete")
                    text = "memory is low: incomplete messages and uncommitted transactions are discarded"
                    handler.fail(client, channel, precondition(text), BasicPublish)
