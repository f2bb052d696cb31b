"""Facts about a connection and its client, for the broker's logs, limits and listings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

AMQP_0_9_1: Final = "AMQP 0-9-1"


class ConnectionInfo:
    """A connection's addresses, its client, and what they agreed on.

    ``peer`` and ``local``: "address:port". ``owner``: globally unique id of the connection, which
    its exclusive queues carry. ``certificate_name``: of a verified client certificate, else empty.
    ``properties`` and ``capabilities``: from connection.start-ok. ``heartbeat``: seconds, 0 for
    none. ``connected_at``: milliseconds since the epoch. ``counted``: counted into its vhost.
    ``protocol``: its name in listings.
    """

    def __init__(self, peer: str, local: str, listener: int, owner: str) -> None:
        self.peer = peer
        self.local = local
        self.listener = listener
        self.owner = owner
        self.certificate_name = ""
        self.mechanism = ""
        self.user = ""
        self.vhost = ""
        self.properties: Mapping[str, object] = {}
        self.capabilities: frozenset[str] = frozenset()
        self.channel_max = 0
        self.heartbeat = 0
        self.connected_at = 0
        self.protocol = AMQP_0_9_1
        self.counted = False

    @property
    def is_client(self) -> bool:
        """False for a session of the management interface."""
        return self.listener >= 0

    @property
    def name(self) -> str:
        """RabbitMQ's name of a connection."""
        return f"{self.peer} -> {self.local}"
