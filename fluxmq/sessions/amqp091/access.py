"""Permission checks of a connection's user, with RabbitMQ's error texts.

Source: RabbitMQ's access control (which operation needs which permission on what).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fluxmq.auth.permissions import DEFAULT_EXCHANGE, Permissions
from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.routing.topology.records import EXCHANGE, QUEUE, Exchange

if TYPE_CHECKING:
    from fluxmq.sessions.amqp091.channel import Channel

TOPIC: Final = "topic"
"""Type of exchange whose routing keys are subject to topic permissions."""


def permissions_of(channel: Channel) -> Permissions | None:
    """Return the user's current permissions; None when even the vhost is no longer accessible."""
    client = channel.client
    return channel.handler.broker.permissions(client.user, client.vhost)


def need_configure(channel: Channel, kind: str, name: str) -> None:
    """Raise SoftError 403 unless the user may declare and delete it."""
    permissions = permissions_of(channel)
    if permissions is None or not permissions.configure(name):
        raise refused(channel, kind, name)


def need_write(channel: Channel, kind: str, name: str) -> None:
    """Raise SoftError 403 unless the user may publish to it, or bind it as destination."""
    permissions = permissions_of(channel)
    if permissions is None or not permissions.write(name):
        raise refused(channel, kind, name)


def need_read(channel: Channel, kind: str, name: str) -> None:
    """Raise SoftError 403 unless the user may consume from it, or bind to it as source."""
    permissions = permissions_of(channel)
    if permissions is None or not permissions.read(name):
        raise refused(channel, kind, name)


def need_topic_read(channel: Channel, exchange: Exchange, routing_key: str) -> None:
    """Raise SoftError 403 unless the user may bind with this key, if the exchange is of type
    topic."""
    if exchange.type != TOPIC:
        return
    permissions = permissions_of(channel)
    if permissions is None or not permissions.topic_read(exchange.name, routing_key):
        raise topic_refused(channel, exchange.name, routing_key)


def refused(channel: Channel, kind: str, name: str) -> SoftError:
    """Return the error for a missing permission on an exchange or queue."""
    assert kind in (EXCHANGE, QUEUE), "there are permissions for these"
    shown = name or (DEFAULT_EXCHANGE if kind == EXCHANGE else name)
    return _refused(channel, f"{kind} '{shown}'")


def topic_refused(channel: Channel, exchange: str, routing_key: str) -> SoftError:
    """Return the error for a missing permission on a routing key."""
    return _refused(channel, f"topic '{routing_key}' in exchange '{exchange}'")


def _refused(channel: Channel, what: str) -> SoftError:
    client = channel.client
    text = f"access to {what} in vhost '{client.vhost}' refused for user '{client.user}'"
    return SoftError(ReplyCode.ACCESS_REFUSED, text)
