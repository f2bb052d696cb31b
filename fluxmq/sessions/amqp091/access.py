"""Permission checks of a connection's user, with RabbitMQ's error texts.

Source: RabbitMQ's access control (which operation needs which permission on what).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fluxmq.auth.logins import BackendLogin
from fluxmq.auth.permissions import DEFAULT_EXCHANGE, Permissions
from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.routing.topology.records import EXCHANGE, Exchange

if TYPE_CHECKING:
    from fluxmq.sessions.amqp091.ports import AmqpBrokerPort

TOPIC: Final = "topic"
"""Type of exchange whose routing keys are subject to topic permissions."""


class Access:
    """A user's permissions in a virtual host. The checks raise SoftError 403, or UndecidedError.

    ``login``: of a user of another backend than the internal one.
    """

    __slots__ = ("_broker", "_user", "_vhost", "login")

    def __init__(
        self, broker: AmqpBrokerPort, user: str, vhost: str, login: BackendLogin | None = None
    ) -> None:
        self._broker = broker
        self._user = user
        self._vhost = vhost
        self.login = login

    def permissions(self) -> Permissions | None:
        """Return the current permissions; None when even the vhost is no longer accessible."""
        if self.login is not None:
            return self.login.permissions(self._vhost)
        return self._broker.permissions(self._user, self._vhost)

    def configure(self, kind: str, name: str) -> None:
        """Check that the user may declare and delete an exchange or queue."""
        permissions = self.permissions()
        if permissions is None or not permissions.configure(name, kind):
            raise self.refused(kind, name)

    def write(self, kind: str, name: str) -> None:
        """Check that the user may publish to it, or bind it as destination."""
        permissions = self.permissions()
        if permissions is None or not permissions.write(name, kind):
            raise self.refused(kind, name)

    def read(self, kind: str, name: str) -> None:
        """Check that the user may consume from it, or bind to it as source."""
        permissions = self.permissions()
        if permissions is None or not permissions.read(name, kind):
            raise self.refused(kind, name)

    def read_topic(self, exchange: Exchange, routing_key: str) -> None:
        """Check that the user may bind with this key, if the exchange is of type topic."""
        if exchange.type == TOPIC:
            permissions = self.permissions()
            if permissions is None or not permissions.topic_read(exchange.name, routing_key):
                raise self.topic_refused(exchange.name, routing_key)

    def refused(self, kind: str, name: str) -> SoftError:
        """Return the error for a missing permission on an exchange or queue."""
        shown = name or (DEFAULT_EXCHANGE if kind == EXCHANGE else name)
        return self._refused(f"{kind} '{shown}'")

    def topic_refused(self, exchange: str, routing_key: str) -> SoftError:
        """Return the error for a missing permission on a routing key."""
        return self._refused(f"topic '{routing_key}' in exchange '{exchange}'")

    def _refused(self, what: str) -> SoftError:
        text = f"access to {what} in vhost '{self._vhost}' refused for user '{self._user}'"
        return SoftError(ReplyCode.ACCESS_REFUSED, text)
