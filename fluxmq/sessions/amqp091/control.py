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
from fluxmq.sessions.amqp091.client import Client

if TYPE_CHECKING:
    from fluxmq.sessions.amqp091.handler import Handler


def on_method(handler: Handler, client: Client, method: Method) -> None:
    """Do it. Raises HardError 504 for a method that channel 0 does not have now."""
    match method:
        case ConnectionClose():
            handler.closed_by_client(client)
        case ConnectionUpdateSecret():
            # For backends whose credentials expire; a password that was verified once needs no renewal, and RabbitMQ's own
            # backend looks at no new one either. What the client sends is kept nowhere.
            client.connection.append(frame(0, ConnectionUpdateSecretOk()))
        case _:
            text = "unexpected method in connection state running"
            raise HardError(ReplyCode.CHANNEL_ERROR, text)
