"""Methods on channel 0 of an open connection: its end, and a new secret.

Source: AMQP 0-9-1 section 1.4.2 (connection), RabbitMQ's connection.update-secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.methods import (
    ConnectionClose,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
    frame,
)
from fluxmq.sessions.amqp091.client import Client, Stage
from fluxmq.sessions.amqp091.ports import Authenticated

if TYPE_CHECKING:
    from fluxmq.sessions.amqp091.handler import Handler


def on_method(handler: Handler, client: Client, method: Method) -> None:
    """Do it. Raises HardError 504 for a method that channel 0 does not have now."""
    match method:
        case ConnectionClose():
            handler.closed_by_client(client)
        case ConnectionUpdateSecret():
            on_update_secret(handler, client, method)
        case _:
            text = "unexpected method in connection state running"
            raise HardError(ReplyCode.CHANNEL_ERROR, text)


def on_update_secret(handler: Handler, client: Client, method: ConnectionUpdateSecret) -> None:
    """A new secret for the same user; one that does not hold ends the connection."""

    def done(result: Authenticated) -> None:
        if client.stage is not Stage.RUNNING:
            return
        if result.user == client.user:
            client.connection.append(frame(0, ConnectionUpdateSecretOk()))
            handler.resume(client)
            return
        text = "New secret was refused by one of the backends"
        handler.fail(client, None, HardError(ReplyCode.NOT_ALLOWED, text), method)

    handler.pause(client)
    handler.broker.update_secret(client, method.new_secret, done)
