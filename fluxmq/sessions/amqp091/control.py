"""Methods on channel 0 of an open connection: close, and update-secret.

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
    """Execute a method. Raises HardError 504 for one that channel 0 does not accept now."""
    match method:
        case ConnectionClose():
            handler.closed_by_client(client)
        case ConnectionUpdateSecret():
            # For backends with expiring credentials; a verified password needs no renewal, and
            # RabbitMQ's internal backend ignores the new one as well. The client's secret is not
            # stored.
            client.connection.append(frame(0, ConnectionUpdateSecretOk()))
        case _:
            text = "unexpected method in connection state running"
            raise HardError(ReplyCode.CHANNEL_ERROR, text)
