"""The state of one AMQP 0.9.1 connection. Lives in one shard and is touched by nothing else."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from fluxmq._hot.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fluxmq.sessions.amqp091.channel import Channel


class Stage(Enum):
    """How far a connection has come: which method is awaited, or that it is open, closing, closed."""

    HEADER = 0
    START_OK = 1
    SECURE_OK = 2
    AUTHENTICATING = 3
    TUNE_OK = 4
    OPEN = 5
    RUNNING = 6
    CLOSING = 7
    CLOSED = 8


class Client:
    """One connection. ``peer`` and ``local``: "address:port". ``owner``: id of the connection, unique among all nodes
    and times, which exclusive queues carry.

    ``certificate_name``: of a verified client certificate, else empty. ``properties`` and ``capabilities``: what
    connection.start-ok said. ``heartbeat``: seconds, 0 for none. ``exclusive``: it has declared exclusive queues.
    ``publishing``: it has published, so that it is told when publishing is blocked.
    """

    __slots__ = (
        "blocked",
        "capabilities",
        "certificate_name",
        "channel_max",
        "channels",
        "close_at",
        "connection",
        "entered",
        "exclusive",
        "heartbeat",
        "heartbeat_at",
        "listener",
        "local",
        "mechanism",
        "name",
        "owner",
        "paused",
        "peer",
        "properties",
        "publishing",
        "stage",
        "user",
        "vhost",
        "waiting",
    )

    def __init__(
        self, connection: Connection, peer: str, local: str, listener: int, owner: str
    ) -> None:
        self.connection = connection
        self.peer = peer
        self.local = local
        self.listener = listener
        self.owner = owner
        self.name = f"{peer} -> {local}"
        self.stage = Stage.HEADER
        self.certificate_name = ""
        self.mechanism = ""
        self.user = ""
        self.vhost = ""
        self.properties: Mapping[str, object] = {}
        self.capabilities: Mapping[str, object] = {}
        self.channel_max = 0
        self.heartbeat = 0
        self.heartbeat_at = 0.0
        self.close_at = 0.0
        self.channels: dict[int, Channel] = {}
        self.exclusive = False
        self.entered = False
        self.publishing = False
        self.blocked = False
        self.paused = False
        self.waiting = 0

    def can(self, capability: str) -> bool:
        """Whether the client's properties claim a capability."""
        return self.capabilities.get(capability) is True
